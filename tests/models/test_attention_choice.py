"""Attention is chosen by what it gives: wrong numbers and missing machinery are found before anybody is served."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from triptych.config import ATTENTIONS, LanguageSettings
from triptych.errors import ConfigError
from triptych.journey import Int32Array
from triptych.models.attention import choice
from triptych.models.attention.base import AttentionShape, AttentionStep
from triptych.models.attention.choice import choose_attention
from triptych.models.attention.parts import split
from triptych.models.attention.sdpa import SdpaAttention
from triptych.models.attention.trial import random_step, what_is_wrong
from triptych.models.attention.varlen import find_runs
from triptych.models.base import DecodeInputs, PagedInputs, StepInputs, StepShape

CPU = torch.device("cpu")
SHAPE = AttentionShape(4, 2, 16, 16, 2, torch.float32, torch.float32, 0.25)


class Spoilt:
    """Torch's attention with a fault in one place. factor: of results; of: the kind of step that has it"""

    name = "spoilt"
    recordable = False

    def __init__(self, shape: AttentionShape, factor: float, of: str) -> None:
        self._sound, self._factor, self._of = SdpaAttention(shape), factor, of

    def step(self, inputs: PagedInputs, kv_slab: Tensor) -> AttentionStep:
        several = "prompt" if max(inputs.query_lengths) > 1 else "single"
        return SpoiltStep(self._sound.step(inputs, kv_slab), self._factor if self._of == several else 1.0)

    def decode_step(self, inputs: DecodeInputs, kv_slab: Tensor) -> AttentionStep:
        return SpoiltStep(self._sound.decode_step(inputs, kv_slab), self._factor if self._of == "decode" else 1.0)

    def list_step(self, sequences: Int32Array, shape: StepShape) -> list[NDArray[np.generic]]:
        return self._sound.list_step(sequences, shape)

    def told_step(self, inputs: StepInputs, kv_slab: Tensor) -> AttentionStep:
        return SpoiltStep(self._sound.told_step(inputs, kv_slab), self._factor if self._of == "told" else 1.0, at=-2)


class SpoiltStep:
    def __init__(self, sound: AttentionStep, factor: float, at: int = -1) -> None:
        self._sound, self._factor, self._at = sound, factor, at

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        result = self._sound.attend(layer, query, key, value)
        result[self._at] *= self._factor
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e4m3fn])
def test_torchs_attention_passes_the_trial(dtype: torch.dtype, kv_dtype: torch.dtype | None) -> None:
    shape = replace(SHAPE, dtype=dtype, kv_dtype=kv_dtype or dtype)
    assert what_is_wrong(SdpaAttention(shape), shape, CPU) == ""


@pytest.mark.parametrize("of", ["single", "prompt", "told"])
@pytest.mark.parametrize("factor", [1.1, float("nan")])
def test_one_wrong_row_is_found(of: str, factor: float) -> None:
    assert "apart" in what_is_wrong(Spoilt(SHAPE, factor, of), SHAPE, CPU)


def test_a_padded_row_that_is_no_zero_is_found() -> None:
    assert "a decode step" in what_is_wrong(Spoilt(SHAPE, float("nan"), "decode"), SHAPE, CPU)


@pytest.mark.parametrize("wanted", ["auto", "sdpa"])
def test_on_the_cpu_attention_is_torchs(wanted: str) -> None:
    assert choose_attention(SHAPE, CPU, wanted).name == "sdpa"


@pytest.mark.parametrize("wanted", ["triton", "varlen", "flashinfer"])
def test_what_was_asked_for_and_cannot_be_is_an_error(wanted: str) -> None:
    with pytest.raises(ConfigError, match=f"'{wanted}', which needs CUDA; use auto or sdpa on cpu"):
        choose_attention(SHAPE, CPU, wanted)


def test_kernels_that_do_not_run_here_give_way_to_torchs_attention_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing but a GPU runs compiled Triton kernels, so on the CPU the trial fails."""
    with caplog.at_level(logging.WARNING):
        assert choice._best(SHAPE, CPU).name == "sdpa"
    assert "decoding cannot be recorded" in caplog.text


def test_the_setting_takes_the_known_names_alone() -> None:
    assert {LanguageSettings(attention=name).attention for name in ATTENTIONS} == set(ATTENTIONS)
    with pytest.raises(ConfigError, match=r"language\.attention"):
        LanguageSettings(attention="flash")


def test_a_step_falls_into_single_tokens_and_prompts_that_begin_and_that_go_on() -> None:
    step = random_step(SHAPE, (1, 5, 1, 7, 3), (9, 5, 1, 20, 3), CPU)
    parts = split(step.inputs)
    assert parts.single.tolist() == [0, 2]
    assert parts.fresh.tolist() == [1, 4]
    assert parts.continued.tolist() == [3]
    assert parts.first.tolist() == [0, 1, 6, 7, 14]


def test_fresh_prompts_side_by_side_are_one_run() -> None:
    step = random_step(SHAPE, (1, 5, 2, 7, 3, 4), (9, 5, 2, 20, 3, 4), CPU)
    runs = find_runs(split(step.inputs))
    assert [(run.tokens, run.bounds.tolist(), run.longest) for run in runs] == [
        (slice(1, 8), [0, 5, 7], 5),
        (slice(15, 22), [0, 3, 7], 4),
    ]


def test_a_step_without_fresh_prompts_has_no_run() -> None:
    assert find_runs(split(random_step(SHAPE, (1, 5), (9, 8), CPU).inputs)) == ()


def test_tiles_cover_every_new_token_once_and_those_that_see_most_come_first() -> None:
    pytest.importorskip("triton")
    from triptych.models.attention.triton_chunks import ChunkRows, list_tiles
    from triptych.models.attention.tuning import ChunkTuning

    first, length, kv_length = (np.array(each) for each in ([3, 40, 50], [37, 10, 64], [100, 10, 64]))
    tiles = list_tiles(ChunkRows(first, length, kv_length, np.arange(3)), ChunkTuning(32, 32, 4, 2))
    tokens = sorted(token for begin, count, _, _ in tiles for token in range(begin, begin + count))
    assert tokens == [*range(3, 114)]
    begin, count, seen, origin = tiles.T
    assert (np.diff(seen + count) <= 0).all()
    assert (seen == kv_length[origin] - length[origin] + begin - first[origin] + 1).all()
