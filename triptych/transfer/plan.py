"""From a claim to a checked pull. Pure: nothing is copied, and what does not fit is said before anything moves."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from triptych.errors import ClaimExpired, TransferFailed
from triptych.journey import EmbeddingRef, Int64Array, KVRef, Shard
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.mapping import Mapping
from triptych.transfer.pull import ByteRun, Pull, UnitRuns


def only_shard(shards: Sequence[Shard]) -> Shard:
    """Raises TransferFailed for a claim in several pieces: which bytes of which row lie where is not defined yet."""
    if len(shards) != 1:
        raise TransferFailed(f"claim in {len(shards)} shards, this reader takes claims in one")
    return shards[0]


def plan_rows(ref: EmbeddingRef, source: Mapping, into: Tensor) -> Pull:
    """The ref's rows into `into` [rows, levels * width] of the ref's dtype.

    Raises TransferFailed when ref, arena and destination do not fit together, ClaimExpired for generation 0.
    """
    shard = only_shard(ref.shards)
    require_rows(ref, into)
    flat = bytes_of(into)
    units, generations = claimed_units(ref, shard, source, flat.numel())
    require_apart(source, flat)
    return Pull(source, flat, (ByteRun(shard.offset, 0, flat.numel()),), units, generations, ref.event)


def plan_blocks(ref: KVRef, source: Mapping, into: Tensor, block_ids: Sequence[int]) -> Pull:
    """The ref's blocks, in order, into the rows `block_ids` of `into` [blocks, block_bytes] uint8.

    When `into` is the very slab the claim is in, blocks that are in their place already are not copied.
    Raises TransferFailed when ref, arena and destination do not fit together, ClaimExpired for generation 0.
    """
    info = source.info
    if into.dtype != torch.uint8 or into.dim() != 2 or into.shape[1] != info.unit_bytes:
        raise TransferFailed(
            f"claim on KV blocks of {info.unit_bytes} bytes, the destination is {tuple(into.shape)} {dtype_name(into)}"
        )
    if len(ref.blocks) != len(block_ids):
        raise TransferFailed(f"claim on {len(ref.blocks)} KV blocks, the destination names {len(block_ids)}")
    units, generations = claimed_blocks(ref, only_shard(ref.shards), source, into.shape[1])
    targets = _ids("destination", block_ids, into.shape[0])
    flat = bytes_of(into)
    moved = _moved(source, flat, units, targets)
    scattered = (units[moved], targets[moved])
    return Pull(source, flat, UnitRuns(*scattered, info.unit_bytes), units, generations, ref.event, scattered)


def dtype_name(tensor: Tensor) -> str:
    """As refs name it: float32, bfloat16, ..."""
    return str(tensor.dtype).removeprefix("torch.")


def require_rows(ref: EmbeddingRef, into: Tensor) -> None:
    """Raises TransferFailed unless the destination is made for the ref's rows."""
    wanted = (ref.rows, ref.levels * ref.width)
    if tuple(into.shape) != wanted or dtype_name(into) != ref.dtype:
        found = f"{tuple(into.shape)} {dtype_name(into)}"
        raise TransferFailed(f"claim on {wanted[0]} rows of {wanted[1]} {ref.dtype}, the destination is {found}")


def claimed_units(ref: EmbeddingRef, shard: Shard, source: Mapping, num_bytes: int) -> tuple[Int64Array, Int64Array]:
    """The units that a shard's bytes lie in, and their generations. Raises as `plan_rows`."""
    info = source.info
    _require_kind(info, "embedding")
    _require_rank(info, shard)
    begin, end = shard.offset, shard.offset + num_bytes
    if begin < 0 or end > info.data_bytes:
        raise TransferFailed(f"claim on bytes [{begin}, {end}), embedding arena {info.id} has {info.data_bytes}")
    units = np.arange(begin // info.unit_bytes, (end - 1) // info.unit_bytes + 1, dtype=np.int64)
    generations = np.full(units.size, ref.generation, dtype=np.int64)
    _require_written(info, generations)
    return units, generations


def claimed_blocks(ref: KVRef, shard: Shard, source: Mapping, block_bytes: int) -> tuple[Int64Array, Int64Array]:
    """A shard's blocks, and their generations. Raises as `plan_blocks`."""
    info = source.info
    _require_kind(info, "kv")
    _require_rank(info, shard)
    if shard.offset != 0:
        raise TransferFailed(f"claim on KV blocks at offset {shard.offset}, blocks are counted from 0")
    if info.unit_bytes != block_bytes:
        raise TransferFailed(
            f"claim on KV blocks of {block_bytes} bytes, those of arena {info.id} have {info.unit_bytes}"
        )
    units = _ids("claim", [block.id for block in ref.blocks], info.num_units)
    generations = np.array([block.generation for block in ref.blocks], dtype=np.int64)
    _require_written(info, generations)
    return units, generations


def require_apart(source: Mapping, flat: Tensor) -> None:
    """Raises TransferFailed where the destination lies in the slab that is read."""
    if _overlaps(source, flat):
        info = source.info
        raise TransferFailed(f"the destination lies inside {info.kind} arena {info.id}, which the claim is read from")


def _moved(source: Mapping, flat: Tensor, units: Int64Array, targets: Int64Array) -> Int64Array:
    """Which of the blocks must be copied: all but those that are in place in the same slab."""
    if not _overlaps(source, flat):
        return np.arange(units.size, dtype=np.int64)
    if flat.data_ptr() != source.data.data_ptr():
        raise TransferFailed(f"the destination is a part of KV arena {source.info.id}, pass the whole slab")
    moved = np.flatnonzero(units != targets).astype(np.int64)
    clash = np.intersect1d(targets[moved], units)
    if clash.size:
        raise TransferFailed(f"block {clash[0]} of KV arena {source.info.id} is both claimed and to be overwritten")
    return moved


def _ids(whose: str, ids: Sequence[int], num_units: int) -> Int64Array:
    """Raises TransferFailed for an id that does not exist, or that is named twice."""
    if min(ids) < 0 or max(ids) >= num_units:
        raise TransferFailed(f"{whose} names KV blocks {min(ids)}..{max(ids)}, there are {num_units}")
    if len(set(ids)) != len(ids):
        raise TransferFailed(f"{whose} names a block twice")
    return np.array(ids, dtype=np.int64)


def bytes_of(into: Tensor) -> Tensor:
    """[bytes] uint8, the same memory. Raises TransferFailed where it is not in one piece."""
    if not into.is_contiguous():
        raise TransferFailed(f"the destination has strides {into.stride()}, expected contiguous memory")
    return into.detach().reshape(-1).view(torch.uint8)


def _overlaps(source: Mapping, flat: Tensor) -> bool:
    """Only within one process can a destination lie in the slab that is read."""
    if source.transport != "local":
        return False
    begin, end = flat.data_ptr(), flat.data_ptr() + flat.numel()
    return begin < source.data.data_ptr() + source.data.numel() and source.data.data_ptr() < end


def _require_kind(info: ArenaInfo, kind: str) -> None:
    if info.kind != kind:
        raise TransferFailed(f"claim of kind {kind} names arena {info.id}, which holds {info.kind}")


def _require_rank(info: ArenaInfo, shard: Shard) -> None:
    if info.rank != shard.rank:
        raise TransferFailed(f"claim on rank {shard.rank} names arena {info.id}, which is rank {info.rank}'s")


def _require_written(info: ArenaInfo, generations: Int64Array) -> None:
    if int(generations.min()) < 1:
        raise ClaimExpired(
            f"claim of generation {int(generations.min())}, never written, on {info.kind} arena {info.id}"
        )
