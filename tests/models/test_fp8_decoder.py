"""A lean decoder that keeps weights or KV in 8 bits: folding costs nothing, steps do not matter, errors stay small."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.checkpoints import random_checkpoint
from tests.models.decoders import CPU, FAMILIES, lean_copy, stock_model
from tests.models.stepper import BLOCK_SIZE, Stepper, Stepping
from triptych.config import LanguageSettings
from triptych.errors import ConfigError
from triptych.models.base import DecodeInputs
from triptych.models.card import load_card
from triptych.models.decoder.layer import HostLayer, Layer
from triptych.models.decoder.lean import LeanDecoder
from triptych.models.decoder.trial import what_is_wrong
from triptych.models.decoder.weights import Dense
from triptych.models.loading import load_language
from triptych.models.quantised import FP8

LENGTHS = (33, 5, 70, 16)
WHOLE = [LENGTHS]
STEPS = [(20, 5, 0, 1), (12, 0, 40, 14), (1, 0, 29, 0), (0, 0, 1, 1)]  # first and later chunks beside branches
FP8_KV, FP8_WEIGHTS = LanguageSettings(kv_dtype="fp8"), LanguageSettings(weights="fp8")
BOTH = LanguageSettings(kv_dtype="fp8", weights="fp8")


def logits(model: LeanDecoder, steps: Any, slab_dtype: torch.dtype | None = None) -> list[Tensor]:
    """Of random prompts, behind the last token of each: [vocab] each."""
    stepper = Stepper(model, 24)
    if slab_dtype is not None:
        stepper.slab = torch.full(stepper.slab.shape, torch.nan).to(slab_dtype)
    prompts = []
    for seed, length in enumerate(LENGTHS):
        ids = torch.randint(7, model.vocab_size, (length,), generator=torch.Generator().manual_seed(seed))
        prompts.append(Stepping(model.embed(ids), np.tile(np.arange(length), (3, 1))))
    last: dict[int, Tensor] = {}
    for counts in steps:
        taken = [index for index, count in enumerate(counts) if count]
        for index, row in zip(taken, stepper.step([(prompts[index], counts[index]) for index in taken]), strict=True):
            last[index] = row
    return [last[index] for index in range(len(LENGTHS))]


def apart(found: list[Tensor], wanted: list[Tensor]) -> float:
    return max(float((one - other).norm() / other.norm()) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("host", [True, False], ids=["for the CPU", "for GPUs"])
@pytest.mark.parametrize("family", FAMILIES)
def test_with_a_slab_of_its_own_dtype_nothing_changes_by_a_bit(family: str, host: bool) -> None:
    stock = stock_model(FAMILIES[family])
    folded = lean_copy(stock, host, FP8_KV)
    assert folded.kv.dtype == FP8
    assert folded.kv.scaling, "scales have a name"
    wanted = logits(lean_copy(stock, host), STEPS)
    found = logits(folded, STEPS, torch.float32)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_kv_in_8_bits_costs_little_and_the_same_in_whatever_steps(family: str) -> None:
    stock = stock_model(FAMILIES[family])
    model = lean_copy(stock, settings=FP8_KV)
    assert all(isinstance(layer, HostLayer) for layer in model.layers)
    wanted, whole = logits(lean_copy(stock), WHOLE), logits(model, WHOLE)
    assert 1e-3 < apart(whole, wanted) < 0.15
    assert apart(logits(model, STEPS), whole) < 1e-3, "what is read from pages is what a first chunk reads directly"


def test_keys_and_values_of_any_size_are_kept_as_well_as_others() -> None:
    stock = stock_model(FAMILIES["qwen2"])
    with torch.no_grad():
        for name, parameter in stock.named_parameters():
            # The same function of keys and values that 8 bits have no numbers for.
            for part, factor in {"k_proj": 2.0**9, "q_proj": 2.0**-9, "v_proj": 2.0**-11, "o_proj": 2.0**11}.items():
                if part in name:
                    parameter.mul_(factor)
    wanted = logits(lean_copy(stock), WHOLE)
    assert apart(logits(lean_copy(stock, settings=FP8_KV), WHOLE), wanted) < 0.15


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_in_8_bits_cost_little_and_the_same_in_whatever_steps(family: str) -> None:
    stock = stock_model(FAMILIES[family])
    model = lean_copy(stock, settings=FP8_WEIGHTS)
    for layer in model.layers:
        assert isinstance(layer, Layer)
        products = (layer.weights.qkv, layer.weights.out, layer.weights.gate_up, layer.weights.down)
        assert not any(isinstance(product, Dense) for product in products)
    wanted, whole = logits(lean_copy(stock), WHOLE), logits(model, WHOLE)
    assert 1e-3 < apart(whole, wanted) < 0.2
    assert apart(logits(model, STEPS), whole) < 0.02, "a rounding that falls the other way is a step of 8 bits"


@pytest.mark.parametrize("settings", [FP8_KV, FP8_WEIGHTS, BOTH], ids=lambda each: each.precision)
@pytest.mark.parametrize("family", FAMILIES)
def test_it_passes_its_trial(family: str, settings: LanguageSettings) -> None:
    model = lean_copy(stock_model(FAMILIES[family]), host=False, settings=settings)
    assert what_is_wrong(model, BLOCK_SIZE) == ""


def test_a_branch_of_a_recorded_step_is_that_of_any_other() -> None:
    model = lean_copy(stock_model(FAMILIES["qwen2"]), settings=BOTH)
    ids = torch.randint(7, model.vocab_size, (20,), generator=torch.Generator().manual_seed(0))
    prompt = Stepping(model.embed(ids), np.tile(np.arange(20), (3, 1)))
    stepper = Stepper(model, 4)
    stepper.step([(prompt, 19)])
    block = prompt.blocks[1]
    inputs = DecodeInputs(
        token_ids=torch.tensor([int(ids[19]), 7]),
        positions=torch.tensor([[19, 0]] * 3),
        slots=torch.tensor([block * BLOCK_SIZE + 3, -1]),
        kv_lengths=torch.tensor([20, 0], dtype=torch.int32),
        block_tables=torch.tensor([prompt.blocks, [0, 0]], dtype=torch.int32),
    )
    found = model.decode(inputs, stepper.slab)[0]
    assert apart([found], [stepper.step([(prompt, 1)])[0]]) < 1e-3


@pytest.mark.parametrize("settings", [FP8_KV, BOTH], ids=lambda each: each.precision)
def test_a_neighbour_without_numbers_harms_nobody_and_its_blocks_neither(settings: LanguageSettings) -> None:
    model = lean_copy(stock_model(FAMILIES["qwen3"]), settings=settings)
    ids = torch.arange(7, 47)
    broken, sound = (Stepping(model.embed(ids[:n]), np.tile(np.arange(n), (3, 1))) for n in (20, 30))
    broken.embeddings[3] = torch.inf
    stepper = Stepper(model, 8)
    stepper.step([(broken, 19), (sound, 29)])
    rows = stepper.step([(broken, 1), (sound, 1)])
    assert rows[0].isnan().all(), "what was infinite is no large number now"
    alone = Stepping(model.embed(ids[:30]), np.tile(np.arange(30), (3, 1)))
    wanted = Stepper(model, 8, seed=1)
    wanted.step([(alone, 29)])
    assert apart([rows[1]], [wanted.step([(alone, 1)])[0]]) < 0.02


def test_equal_weights_have_equally_named_scales() -> None:
    stock = stock_model(FAMILIES["qwen2"])
    one, same = lean_copy(stock, settings=FP8_KV), lean_copy(stock, settings=BOTH)
    with torch.no_grad():
        for name, parameter in stock.named_parameters():
            if "k_proj" in name:
                parameter.mul_(8)
    other = lean_copy(stock, settings=FP8_KV)
    assert one.kv.scaling == same.kv.scaling != other.kv.scaling
    assert lean_copy(stock).kv.scaling == ""


def load(folder: Path, settings: LanguageSettings) -> Any:
    return load_language(load_card(str(folder), "auto"), CPU, "auto", settings)


@pytest.mark.parametrize("settings", [FP8_KV, FP8_WEIGHTS, BOTH], ids=lambda each: each.precision)
def test_no_other_decoder_is_taken_where_8_bits_are_asked_for(settings: LanguageSettings) -> None:
    assert isinstance(load(random_checkpoint(), settings), LeanDecoder)
    generic = LanguageSettings(decoder="generic", weights=settings.weights, kv_dtype=settings.kv_dtype)
    with pytest.raises(ConfigError, match=r"only the lean decoder keeps anything in 8 bits.*decoder is generic"):
        load(random_checkpoint(), generic)
