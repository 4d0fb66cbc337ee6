from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.transfer.neighbours import CPU, blocks_ref, rows_ref
from triptych.errors import ClaimExpired, TransferFailed
from triptych.journey import Shard
from triptych.transfer.local import LocalMapping
from triptych.transfer.plan import plan_blocks, plan_rows
from triptych.transfer.pull import ByteRun, Pull, UnitRuns
from triptych.transfer.slab import create_slab


def _embeddings() -> LocalMapping:
    return LocalMapping(create_slab("embedding", 1, unit_bytes=64, num_units=10, device=CPU))


def _kv() -> LocalMapping:
    return LocalMapping(create_slab("kv", 2, unit_bytes=64, num_units=10, device=CPU))


def _landing(rows: int, width: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.zeros(rows, width, dtype=dtype)


@pytest.mark.parametrize(
    ("offset", "rows", "units"),
    [
        (0, 4, [0]),  # a unit holds 4 rows of 2 int64
        (0, 5, [0, 1]),
        (48, 1, [0]),
        (48, 2, [0, 1]),
        (64, 4, [1]),
        (63, 1, [0, 1]),  # whatever the offset, every unit that is touched vouches
        (128, 32, [2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_rows_are_vouched_for_by_every_unit_they_touch(offset: int, rows: int, units: list[int]) -> None:
    pull = plan_rows(rows_ref(3, rows, 2, offset), _embeddings(), _landing(rows, 2))
    assert pull.units.tolist() == units
    assert pull.generations.tolist() == [3] * len(units)
    assert pull.runs == (ByteRun(offset, 0, rows * 16),)


@pytest.mark.parametrize(
    ("ref", "into", "reason"),
    [
        (rows_ref(1, 4, 2, offset=640), _landing(4, 2), r"bytes \[640, 704\), embedding arena 1 has 640"),
        (rows_ref(1, 41, 2), _landing(41, 2), r"bytes \[0, 656\)"),
        (rows_ref(1, 1, 2, offset=1 << 62), _landing(1, 2), "arena 1 has 640"),
        (rows_ref(1, 1, 2, offset=-16), _landing(1, 2), r"bytes \[-16, 0\)"),
        (rows_ref(1, 4, 2), _landing(3, 2), "4 rows of 2 int64, the destination is (3, 2)"),
        (rows_ref(1, 4, 2), _landing(4, 3), "the destination is (4, 3)"),
        (rows_ref(1, 4, 2), _landing(2, 4), "the destination is (2, 4)"),
        (rows_ref(1, 4, 2, levels=2), _landing(4, 2), "4 rows of 4 int64"),
        (rows_ref(1, 4, 2), _landing(4, 2, torch.float64), "(4, 2) float64"),
        (rows_ref(1, 4, 2, dtype="bfloat16"), _landing(4, 2, torch.float16), "(4, 2) float16"),
        (rows_ref(1, 4, 2), torch.zeros(2, 4, dtype=torch.int64).T, "strides"),
    ],
)
def test_rows_that_do_not_fit_are_refused(ref: Any, into: Tensor, reason: str) -> None:
    with pytest.raises(TransferFailed) as failure:
        plan_rows(ref, _embeddings(), into)
    assert reason.replace("\\", "") in failure.value.message


def test_a_claim_on_the_wrong_kind_or_rank_is_refused() -> None:
    with pytest.raises(TransferFailed, match="kind embedding names arena 2, which holds kv"):
        plan_rows(rows_ref(1, 4, 2), _kv(), _landing(4, 2))
    with pytest.raises(TransferFailed, match="kind kv names arena 1, which holds embedding"):
        plan_blocks(blocks_ref([(0, 1)]), _embeddings(), torch.zeros(10, 64, dtype=torch.uint8), [0])
    with pytest.raises(TransferFailed, match="rank 1"):
        plan_blocks(blocks_ref([(0, 1)], shards=(Shard(1, 2, 0),)), _kv(), torch.zeros(10, 64, dtype=torch.uint8), [0])


def test_a_claim_in_several_shards_is_refused() -> None:
    ref = blocks_ref([(0, 1)], shards=(Shard(0, 2, 0), Shard(1, 2, 0)))
    with pytest.raises(TransferFailed, match="2 shards"):
        plan_blocks(ref, _kv(), torch.zeros(10, 64, dtype=torch.uint8), [0])


def test_generation_zero_vouches_for_nothing() -> None:
    """A fresh slab's words are zero: a ref that says zero would make garbage valid."""
    with pytest.raises(ClaimExpired, match="never written"):
        plan_rows(rows_ref(0, 4, 2), _embeddings(), _landing(4, 2))
    with pytest.raises(ClaimExpired, match="never written"):
        plan_blocks(blocks_ref([(1, 5), (2, 0)]), _kv(), torch.zeros(10, 64, dtype=torch.uint8), [0, 1])


@pytest.mark.parametrize(
    ("blocks", "ids", "reason"),
    [
        ([(10, 1)], [0], "claim names KV blocks 10..10, there are 10"),
        ([(-1, 1)], [0], "claim names KV blocks -1..-1"),
        ([(0, 1)], [12], "destination names KV blocks 12..12, there are 12"),
        ([(0, 1)], [-1], "destination names KV blocks -1"),
        ([(0, 1), (1, 1)], [0], "claim on 2 KV blocks, the destination names 1"),
        ([(0, 1)], [], "the destination names 0"),
        ([(0, 1), (1, 1)], [3, 3], "destination names a block twice"),
        ([(4, 1), (4, 1)], [0, 1], "claim names a block twice"),
    ],
)
def test_blocks_that_do_not_exist_are_refused(blocks: Any, ids: list[int], reason: str) -> None:
    with pytest.raises(TransferFailed) as failure:
        plan_blocks(blocks_ref(blocks), _kv(), torch.zeros(12, 64, dtype=torch.uint8), ids)
    assert reason in failure.value.message


@pytest.mark.parametrize(
    "into",
    [
        torch.zeros(12, 32, dtype=torch.uint8),
        torch.zeros(12, 8, dtype=torch.int64),
        torch.zeros(768, dtype=torch.uint8),
        torch.zeros(64, 12, dtype=torch.uint8).T,
    ],
)
def test_a_destination_of_other_blocks_is_refused(into: Tensor) -> None:
    with pytest.raises(TransferFailed):
        plan_blocks(blocks_ref([(0, 1)]), _kv(), into, [0])


def test_a_kv_claim_with_an_offset_is_refused() -> None:
    with pytest.raises(TransferFailed, match="offset 64"):
        plan_blocks(blocks_ref([(0, 1)], shards=(Shard(0, 2, 64),)), _kv(), torch.zeros(10, 64, dtype=torch.uint8), [0])


def _in_place(ids: Sequence[int], targets: Sequence[int]) -> Pull:
    source = _kv()
    return plan_blocks(blocks_ref([(block, 1) for block in ids]), source, source.data.view(10, 64), targets)


def test_blocks_in_their_place_are_not_copied_but_still_vouched_for() -> None:
    pull = _in_place([4, 1, 7], [4, 1, 7])
    assert tuple(pull.runs) == ()
    assert pull.units.tolist() == [4, 1, 7]
    pull = _in_place([4, 1, 7], [4, 2, 7])
    assert tuple(pull.runs) == (ByteRun(64, 128, 64),)
    assert pull.units.tolist() == [4, 1, 7]


def test_a_copy_within_a_slab_never_overwrites_what_it_reads() -> None:
    with pytest.raises(TransferFailed, match="block 2 of KV arena 2 is both claimed and to be overwritten"):
        _in_place([1, 2], [2, 3])
    with pytest.raises(TransferFailed, match="block 1 "):
        _in_place([1, 4], [4, 1])


def test_a_part_of_the_slab_is_no_destination_for_its_own_blocks() -> None:
    source = _kv()
    with pytest.raises(TransferFailed, match="pass the whole slab"):
        plan_blocks(blocks_ref([(0, 1)]), source, source.data.view(10, 64)[2:], [0])
    embeddings = _embeddings()
    with pytest.raises(TransferFailed, match="inside embedding arena 1"):
        plan_rows(rows_ref(1, 4, 2), embeddings, embeddings.data.view(torch.int64)[8:16].view(4, 2))


def test_neighbouring_blocks_travel_in_one_run() -> None:
    def runs(sources: list[int], targets: list[int]) -> list[tuple[int, int, int]]:
        return [tuple(run) for run in UnitRuns(np.array(sources), np.array(targets), 10)]  # type: ignore[misc]

    assert runs([3, 4, 5], [0, 1, 2]) == [(30, 0, 30)]
    assert runs([3, 4, 6], [0, 1, 2]) == [(30, 0, 20), (60, 20, 10)]
    assert runs([3, 4, 5], [0, 1, 5]) == [(30, 0, 20), (50, 50, 10)]
    assert runs([5, 4], [1, 0]) == [(50, 10, 10), (40, 0, 10)]
    assert runs([], []) == []
