"""Every implementation of paged attention gives what float64 gives, whatever a step is made of."""

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.models.attention_cases import LARGEST_ERRORS, Case, Spec, alone, decodes, make_case, relative
from triptych.models.attention.sdpa import SdpaAttention
from triptych.models.attention.sdpa_step import SlabShape, index_step

ROOT = Path(__file__).parents[2]
FP8 = torch.float8_e4m3fn


@pytest.fixture(scope="module")
def interpreted() -> dict[str, object]:
    """Figures of our Triton kernels, of a process of its own: the interpreter is chosen when they are imported."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not there")
    done = subprocess.run(
        [sys.executable, "-m", "tests.models.interpreted_attention"],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    figures: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return figures


@pytest.mark.parametrize("kind", ["decode", "step"])
def test_triton_attention_equals_float64(interpreted: dict[str, object], kind: str) -> None:
    found = interpreted[kind]
    assert isinstance(found, list)
    assert len(found) >= 8
    limits = {str(dtype): limit for dtype, limit in LARGEST_ERRORS.items()}
    for number, (dtype, error) in enumerate(found):
        assert error <= limits[dtype], f"case {number}, in {dtype}"


def test_triton_rows_do_not_depend_on_their_neighbours(interpreted: dict[str, object]) -> None:
    assert interpreted["alone"] == 0


def test_triton_decode_does_not_depend_on_padding_and_width(interpreted: dict[str, object]) -> None:
    assert interpreted["told"] == 0


def test_triton_steps_with_prompts_do_not_depend_on_padding_and_width(interpreted: dict[str, object]) -> None:
    assert interpreted["told steps"] == 0


def random_case(seed: int, dtype: torch.dtype = torch.float32, kv_dtype: torch.dtype | None = None) -> Case:
    chosen = random.Random(seed)
    lengths = [chosen.choice([1, 1, chosen.randint(2, 90)]) for _ in range(chosen.randint(1, 6))]
    kv_lengths = tuple(length + chosen.choice([0, chosen.randint(1, 3000)]) for length in lengths)
    kv_heads = chosen.choice([1, 2])
    heads, head_size = kv_heads * chosen.choice([1, 4, 7, 8]), chosen.choice([64, 80, 96, 128])
    block_size = chosen.choice([16, 32])
    return make_case(Spec(heads, kv_heads, head_size, block_size, tuple(lengths), kv_lengths, dtype, kv_dtype), seed)


@pytest.mark.parametrize("seed", range(12))
def test_torchs_attention_equals_float64(seed: int) -> None:
    case = random_case(seed)
    assert relative(case.attended(SdpaAttention(case.shape)), case.exact) <= LARGEST_ERRORS[torch.float32]


@pytest.mark.parametrize("seed", range(4))
def test_torchs_attention_reads_pages_in_fp8(seed: int) -> None:
    case = random_case(seed, torch.float32, FP8)
    assert relative(case.attended(SdpaAttention(case.shape)), case.exact) <= LARGEST_ERRORS[torch.float32]


@pytest.mark.parametrize("spare", [0, 7])
@pytest.mark.parametrize("seed", range(6))
def test_torchs_attention_of_a_step_told_by_tensors_equals_float64(seed: int, spare: int) -> None:
    case = random_case(seed)
    assert relative(case.told(SdpaAttention(case.shape), spare), case.exact) <= LARGEST_ERRORS[torch.float32]


def test_torchs_attention_of_a_padded_decode_step_leaves_zeros_in_padded_rows() -> None:
    case = make_case(decodes(4, 2, 64, 16, [1, 33, 250]), seed=3)
    result = case.decoded(SdpaAttention(case.shape), width=40, padding=2)
    assert relative(result[:3], case.exact) <= LARGEST_ERRORS[torch.float32]
    assert torch.equal(result[3:], torch.zeros(2, 4, 64))


def test_a_row_of_torchs_attention_is_close_to_what_it_is_alone() -> None:
    case = make_case(Spec(8, 2, 64, 16, (1, 30, 1, 12), (60, 30, 700, 90)), seed=4)
    attention = SdpaAttention(case.shape)
    together = case.attended(attention).split(case.inputs.query_lengths)
    for row, result in enumerate(together):
        torch.testing.assert_close(result, alone(case, row).attended(attention), atol=2e-6, rtol=0)


@pytest.mark.parametrize(("length", "kv_length"), [(300, 300), (64, 200), (130, 700), (65, 1100), (129, 129)])
@pytest.mark.parametrize("share", [1, 7])
def test_long_prompts_on_the_cpu_equal_float64(share: int, length: int, kv_length: int) -> None:
    case = make_case(Spec(2 * share, 2, 64, 16, (length, 1), (kv_length, 7)), seed=length)
    assert relative(case.attended(SdpaAttention(case.shape)), case.exact) <= LARGEST_ERRORS[torch.float32]


def test_short_sequences_beside_long_ones_are_attended_in_batches_of_their_own() -> None:
    lengths = [3, 2500, 17, 1, 2900, 40, 40, 40, 700, 16]
    case = make_case(decodes(4, 2, 64, 16, lengths), seed=8)
    slab = SlabShape(*case.slab.shape[:2], *case.slab.shape[3:])
    batches = index_step(case.inputs, slab, torch.float32).decodes
    assert [group.count for group in batches] == [1, 1, 2, 1, 4, 1]
    assert relative(case.attended(SdpaAttention(case.shape)), case.exact) <= LARGEST_ERRORS[torch.float32]
