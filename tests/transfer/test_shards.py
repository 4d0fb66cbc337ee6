"""Rows of every dtype, in one shard or several, land as they were written."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.transfer.neighbours import CPU, HERE, rows_ref
from triptych.config import TransferSettings
from triptych.dtypes import DTYPE_BYTES
from triptych.errors import ClaimExpired, InvalidRecord, TransferFailed
from triptych.journey import EmbeddingRef, Shard
from triptych.transfer.checksum import checksum
from triptych.transfer.reader import Reader
from triptych.transfer.slab import Slab, create_slab

UNIT_BYTES, UNITS = 256, 64
GENERATION = 5


def shards_of(rows: Tensor, offsets: list[int]) -> tuple[tuple[Shard, ...], dict[int, Slab]]:
    """The rows' columns in equal parts, each in an arena of its own rank at its offset."""
    shards, slabs = [], {}
    for rank, (part, offset) in enumerate(zip(rows.view(torch.uint8).chunk(len(offsets), 1), offsets, strict=True)):
        slab = create_slab("embedding", 10 + rank, UNIT_BYTES, UNITS, CPU)
        slab.stamp(range(UNITS), [GENERATION] * UNITS)
        slab.data[:] = 0x5A
        slab.data[offset : offset + part.numel()] = part.reshape(-1)
        slabs[10 + rank] = slab
        shards.append(Shard(rank, 10 + rank, offset))
    return tuple(shards), slabs


def ref_of(rows: Tensor, shards: tuple[Shard, ...], levels: int = 1, **more: Any) -> EmbeddingRef:
    name = str(rows.dtype).removeprefix("torch.")
    plain = rows_ref(GENERATION, rows.shape[0], rows.shape[1] // levels, levels=levels, dtype=name)
    return replace(plain, shards=shards, **more)


def read(ref: EmbeddingRef, slabs: dict[int, Slab], into: Tensor) -> None:
    arenas = [replace(slab.describe(), rank=arena - 10) for arena, slab in slabs.items()]
    reader = Reader(lambda endpoint: arenas, HERE, {}, CPU, TransferSettings(copy_timeout_seconds=5))
    try:
        reader.read_rows(ref, into)
    finally:
        reader.close()


def some_rows(count: int, width: int, dtype: torch.dtype) -> Tensor:
    numbers = torch.randint(0, 256, (count, width * dtype.itemsize), dtype=torch.uint8)
    return numbers.view(dtype)


@pytest.mark.parametrize("name", DTYPE_BYTES)
@pytest.mark.parametrize("num_shards", [1, 3])
def test_rows_of_every_dtype_land_and_are_summed(name: str, num_shards: int) -> None:
    rows = some_rows(11, 12, getattr(torch, name))
    shards, slabs = shards_of(rows, [0, 512, 256][:num_shards])
    into = torch.zeros_like(rows)
    read(ref_of(rows, shards, checksum=checksum(rows)), slabs, into)
    assert torch.equal(into.view(torch.uint8), rows.view(torch.uint8))
    with pytest.raises(TransferFailed, match="checksum"):
        read(ref_of(rows, shards, checksum=bytes(16)), slabs, into)


@pytest.mark.parametrize("offsets", [[0, 0, 0, 0], [768, 0, 2048, 256], [3, 1, 7, 2]])
def test_levels_in_shards_of_their_own_become_the_columns_of_the_rows(offsets: list[int]) -> None:
    rows = some_rows(20, 4 * 10, torch.bfloat16)
    shards, slabs = shards_of(rows, offsets)
    into = torch.zeros_like(rows)
    read(ref_of(rows, shards, levels=4), slabs, into)
    assert torch.equal(into.view(torch.uint8), rows.view(torch.uint8))


def test_each_shard_is_vouched_for_by_its_own_units() -> None:
    rows = some_rows(30, 16, torch.float32)
    shards, slabs = shards_of(rows, [0, 512])
    slabs[11].stamp([1], [GENERATION + 1])  # ahead of the shard
    read(ref_of(rows, shards), slabs, torch.zeros_like(rows))
    slabs[11].stamp([5], [GENERATION + 1])  # its last unit
    with pytest.raises(ClaimExpired, match="unit 5 has generation 6"):
        read(ref_of(rows, shards), slabs, torch.zeros_like(rows))


def test_shards_that_do_not_fit_are_refused() -> None:
    rows = some_rows(8, 6, torch.int8)
    shards, slabs = shards_of(rows, [0, 0, 0])
    into = torch.zeros_like(rows)
    for wrong, reason in [
        ((shards[0], replace(shards[1], rank=0), shards[2]), "rank"),
        ((*shards[:2], replace(shards[2], offset=UNITS * UNIT_BYTES - 8)), "embedding arena 12 has"),
        ((*shards, Shard(1, 11, 256)), "4 shards of unequal width"),
        ((*shards[:2], Shard(0, 99, 0)), "no arena 99"),
    ]:
        with pytest.raises(TransferFailed, match=reason):
            read(ref_of(rows, wrong), slabs, into)
    assert not bool(into.any())
    with pytest.raises(InvalidRecord, match="names one of them twice"):
        ref_of(rows, (shards[0], shards[0]))
    with pytest.raises(InvalidRecord, match="dtype 'complex64'"):
        replace(ref_of(rows, shards), dtype="complex64")
