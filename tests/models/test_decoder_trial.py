"""A decoder whose numbers are not those of the formulas is found out before it serves anybody."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.models.decoders import FAMILIES, lean_copy, lean_decoder, stock_model
from triptych.journey import Int32Array
from triptych.models.attention.base import AttentionStep
from triptych.models.base import DecodeInputs, PagedInputs, StepInputs, StepShape
from triptych.models.decoder import loading
from triptych.models.decoder.layer import Layer
from triptych.models.decoder.lean import LeanDecoder
from triptych.models.decoder.trial import what_is_wrong
from triptych.models.decoder.weights import Dense
from triptych.models.kernels import plain
from triptych.models.kernels.choice import Kernels
from triptych.models.kernels.head_shape import TokenPlaces, Turn
from triptych.models.kernels.plain_turn import PlainTurn

BLOCK_SIZE = 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sound_decoder_passes(folder: Path, dtype: torch.dtype) -> None:
    assert what_is_wrong(lean_decoder(folder, dtype, host=False), BLOCK_SIZE) == ""


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("block_size", [5, 32])
def test_every_family_passes_over_blocks_of_any_size(family: str, block_size: int) -> None:
    assert what_is_wrong(lean_copy(stock_model(FAMILIES[family]), host=False), block_size) == ""


def test_a_trial_leaves_the_decoder_as_it_was(folder: Path) -> None:
    decoder = lean_decoder(folder, host=False)
    what_is_wrong(decoder, BLOCK_SIZE)
    assert all(isinstance(layer, Layer) for layer in decoder.layers)


def wrong_gated(x: Tensor, weight: Tensor) -> Tensor:
    return plain.gated(x, weight.flip(0))


def norm_without_sum(hidden: Tensor, delta: Tensor | None, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    _, normed = plain.add_norm(hidden, delta, weight, epsilon)
    return hidden, normed


class TurnedBack(PlainTurn):
    def __init__(self, places: TokenPlaces) -> None:
        super().__init__(replace(places, sin=-places.sin))


class KeysOfTheLayerBefore(PlainTurn):
    def __call__(self, layer: int, qkv: Tensor, head_norm: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        return super().__call__(max(layer - 1, 0), qkv, head_norm)


class NoNumbers(PlainTurn):
    def __call__(self, layer: int, qkv: Tensor, head_norm: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        return super().__call__(layer, qkv * torch.nan, head_norm)


FAULTS: dict[str, Kernels] = {
    "gate and up change places": Kernels(gated=wrong_gated),
    "the stream is not summed": Kernels(add_norm=norm_without_sum),
    "heads turn the other way": Kernels(turn=TurnedBack),
    "keys go to another layer": Kernels(turn=KeysOfTheLayerBefore),
    "there are no numbers": Kernels(turn=NoNumbers),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_is_found(folder: Path, fault: str, dtype: torch.dtype) -> None:
    decoder = lean_decoder(folder, dtype, host=False)
    for layer in decoder.layers:
        assert isinstance(layer, Layer)
        layer.kernels = FAULTS[fault]
    decoder.kernels = FAULTS[fault]
    assert "apart" in what_is_wrong(decoder, BLOCK_SIZE)


class Forgetful:
    """Attention that never sees what was written in earlier steps."""

    def __init__(self, decoder: LeanDecoder) -> None:
        self._sound = decoder.attention(BLOCK_SIZE)
        self.name, self.recordable = "forgetful", False

    def step(self, inputs: PagedInputs, kv_slab: Tensor) -> AttentionStep:
        return self._sound.step(replace(inputs, kv_lengths=inputs.query_lengths), kv_slab)

    def decode_step(self, inputs: DecodeInputs, kv_slab: Tensor) -> AttentionStep:
        return self._sound.decode_step(inputs, kv_slab)

    def list_step(self, sequences: Int32Array, shape: StepShape) -> list[NDArray[np.generic]]:
        return self._sound.list_step(sequences, shape)

    def told_step(self, inputs: StepInputs, kv_slab: Tensor) -> AttentionStep:
        return self._sound.told_step(inputs, kv_slab)


def test_attention_that_forgets_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = lean_decoder(folder, torch.bfloat16, host=False)
    forgetful = Forgetful(decoder)
    monkeypatch.setattr(decoder, "attention", lambda block_size: forgetful)
    assert "layer 0 is" in what_is_wrong(decoder, BLOCK_SIZE)


class OtherRows(Dense):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x).roll(1, dims=1)


def test_another_head_is_found(folder: Path) -> None:
    decoder = lean_decoder(folder, torch.bfloat16, host=False)
    assert isinstance(decoder.head, Dense)
    decoder.head = OtherRows(decoder.head.weight)
    assert "the head is" in what_is_wrong(decoder, BLOCK_SIZE)


def test_a_trial_that_ends_in_an_error_says_so(folder: Path) -> None:
    decoder = lean_decoder(folder, torch.bfloat16, host=False)

    def broken(places: TokenPlaces) -> Turn:
        raise RuntimeError("no such instruction")

    decoder.kernels = Kernels(turn=broken)
    assert "no such instruction" in loading._try(decoder, BLOCK_SIZE)
