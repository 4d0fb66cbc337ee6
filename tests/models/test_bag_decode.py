"""Decode attention on the CPU keeps keys from step to step, and gives what it gives to whoever is met anew."""

import random
from dataclasses import replace

import pytest
import torch

from tests.models.attention_cases import LARGEST_ERRORS, Case, Spec, alone, decodes, make_case, relative
from triptych.models.attention.bag_decode import BagDecode
from triptych.models.attention.key_columns import KeyColumns
from triptych.models.attention.sdpa import SdpaAttention

F32 = torch.float32


def told(case: Case, *histories: int) -> Case:
    return replace(case, inputs=replace(case.inputs, histories=histories))


def step(case: Case, rows: dict[int, int]) -> Case:
    """Of rows of a case with one new token each, when their sequences, here and there shorter, had so many tokens."""
    lengths = tuple(rows.values())
    tables = case.inputs.block_tables[list(rows)]
    page = case.shape.block_size
    last = torch.tensor(lengths) - 1
    slots = tables[torch.arange(len(rows)), last // page] * page + last % page
    key = case.slab[slots // page, 1, 0, slots % page]
    inputs = replace(
        case.inputs, query_lengths=(1,) * len(rows), kv_lengths=lengths, block_tables=tables, slots=slots, histories=()
    )
    return replace(case, inputs=inputs, query=case.query[list(rows)], key=key, value=key)


@pytest.mark.parametrize("seed", range(8))
def test_it_equals_float64_beside_prompts_and_beside_whom_it_is_not_told_of(seed: int) -> None:
    chosen = random.Random(seed)
    lengths = tuple(chosen.choice([1, 1, 1, chosen.randint(2, 90)]) for _ in range(chosen.randint(1, 7)))
    kv_lengths = tuple(length + chosen.choice([0, 15, chosen.randint(1, 3000)]) for length in lengths)
    kv_heads = chosen.choice([1, 2])
    heads, head_size = kv_heads * chosen.choice([1, 4, 7]), chosen.choice([64, 80, 128])
    case = make_case(Spec(heads, kv_heads, head_size, chosen.choice([5, 16, 128]), lengths, kv_lengths), seed)
    case = told(case, *(chosen.choice([0, row + 1]) if n == 1 else 0 for row, n in enumerate(lengths)))
    attention = SdpaAttention(case.shape)
    for _ in range(2):  # met anew both times: nobody has grown
        assert relative(case.attended(attention), case.exact) <= LARGEST_ERRORS[F32]


@pytest.mark.parametrize("block_size", [16, 48])
def test_sequences_that_grow_come_and_go_get_what_they_get_untold(block_size: int) -> None:
    chosen = random.Random(block_size)
    case = make_case(decodes(4, 2, 64, block_size, [400, 340, 320, 350]), seed=1)
    attention, untold = SdpaAttention(case.shape), SdpaAttention(case.shape)
    lengths = {row: chosen.randint(1, 140) for row in range(4)}
    for _ in range(60):
        running = {row: length for row, length in lengths.items() if chosen.random() < 0.95}
        now = step(case, running)
        found = told(now, *(row + 1 for row in running)).attended(attention)
        torch.testing.assert_close(found, now.attended(untold), atol=2e-6, rtol=0)
        for row in running:
            lengths[row] += 1 if chosen.random() < 0.97 else 3


def test_a_row_is_what_it_is_alone_to_the_last_bit() -> None:
    case = told(make_case(decodes(4, 2, 64, 16, [1, 700, 64, 65, 333]), seed=4), 1, 2, 3, 4, 5)
    together = case.attended(SdpaAttention(case.shape))
    for row in range(5):
        single = told(alone(case, row), row + 1)
        assert torch.equal(together[row : row + 1], single.attended(SdpaAttention(case.shape)))


def test_long_and_short_sequences_are_not_padded_to_one_length() -> None:
    case = told(make_case(decodes(4, 2, 64, 16, [3000, 10, 2900, 20]), seed=2), 1, 2, 3, 4)
    batches = BagDecode(case.shape).step(case.inputs, case.slab).batches
    assert [batch.count for batch in batches] == [2, 2]


def test_whoever_finds_no_room_for_its_keys_is_attended_to_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych.models.attention.key_columns._MOST_BYTES", 3 * 2 * 2 * 64 * 64 * 4)  # 3 chunks
    case = told(make_case(decodes(4, 2, 64, 16, [100, 100, 40]), seed=3), 1, 2, 3)
    attention = SdpaAttention(case.shape)
    assert BagDecode(case.shape).step(case.inputs, case.slab).rows == {0, 2}
    assert relative(case.attended(attention), case.exact) <= LARGEST_ERRORS[F32]


def test_chunks_of_whoever_has_left_are_free_again_and_come_back_without_what_was_in_them() -> None:
    case = make_case(decodes(4, 2, 64, 16, [70, 130]), seed=5)
    columns = KeyColumns(case.slab)
    free = columns.num_free
    tables = case.inputs.block_tables
    assert columns.hold(1, 130, case.slab, tables[1]) is not None
    assert columns.num_free == free - 3
    columns.keep([2])
    assert columns.num_free == free
    held = columns.hold(2, 70, case.slab, tables[0])
    assert held is not None
    assert columns.num_free == free - 2
    assert not columns.pool[held[-1], ..., 69 - 64 :].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_other_slabs_are_left_to_torchs_attention(dtype: torch.dtype) -> None:
    model = F32 if dtype.itemsize == 1 else dtype
    case = told(make_case(Spec(4, 2, 64, 16, (1, 1), (60, 30), model, dtype)), 1, 2)
    assert not BagDecode(case.shape).takes(case.slab)
    assert relative(case.attended(SdpaAttention(case.shape)), case.exact) <= LARGEST_ERRORS[model]
