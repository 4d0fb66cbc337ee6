"""What each sequence of a step reads of the KV slab, for torch's own attention: indices, worked out once per step.

Everything Python decides by is host numbers; what the device needs is shipped without waiting for it.
"""

import importlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from triptych.journey import Int64Array
from triptych.models.base import PagedInputs
from triptych.models.shipping import ship

_CACHE_BYTES = 3 * 2**20  # of keys and values that are copied together on the CPU
if TYPE_CHECKING:
    from torch.nn.attention.bias import CausalBias


@dataclass(frozen=True, slots=True)
class SlabShape:
    """Sides of a KV slab [blocks, layers, 2, block_size, kv_heads, head_size]; see KVGeometry."""

    blocks: int
    layers: int
    block_size: int
    kv_heads: int
    head_size: int

    @property
    def planes(self) -> int:
        """Pieces of block_size tokens in one block: keys and values of every layer."""
        return self.layers * 2


@dataclass(frozen=True, slots=True, eq=False)
class DecodeGroup:
    """Sequences with one new token each, attended in one batch.

    tokens: [n] or slice  where their tokens stand in the step
    planes: of each layer, [2 * n * width] int64  planes to read: all keys, then all values
    length: keys attended per sequence, the longest one's
    mask:   [n, 1, 1, length] of the model's dtype, 0 or -inf; None where all are equally long
    stale:  int64  rows read that belong to no token: whatever lies there, their weight must come out as zero
    """

    tokens: slice | Tensor
    planes: tuple[Tensor, ...]
    count: int
    length: int
    mask: Tensor | None
    stale: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Several new tokens of one sequence.

    planes: as in DecodeGroup; None where nothing lies before the chunk, so that nothing need be read
    mask:   [tokens, kv_length] 0 or -inf, or torch's own causal bias; None where plain causal attention is meant
    """

    tokens: slice
    kv_length: int
    planes: tuple[Tensor, ...] | None
    mask: "Tensor | CausalBias | None"


@dataclass(frozen=True, slots=True, eq=False)
class StepIndices:
    """Sequences with one new token each, in one batch or more, and the others."""

    decodes: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]


def index_step(
    inputs: PagedInputs, slab: SlabShape, dtype: torch.dtype, elsewhere: Collection[int] = ()
) -> StepIndices:
    """Indices of one step; dtype is the model's. Nothing waits for the device.

    elsewhere: rows with one new token that are attended to by others
    """
    lengths = np.array(inputs.query_lengths)
    singles = np.array([row for row in np.flatnonzero(lengths == 1).tolist() if row not in elsewhere], dtype=np.int64)
    ends = np.cumsum(lengths)
    chunks = tuple(_chunk(inputs, int(row), int(ends[row]), slab, dtype) for row in np.flatnonzero(lengths != 1))
    batches = _batches(inputs, singles, slab, dtype)
    decodes = tuple(_decode_group(inputs, rows, ends[rows] - 1, slab, dtype) for rows in batches)
    return StepIndices(decodes, chunks)


def _batches(inputs: PagedInputs, singles: Int64Array, slab: SlabShape, dtype: torch.dtype) -> list[Int64Array]:
    """Sequences whose copied keys and values stay in the CPU's cache until they have been attended to.

    That is faster by half, and those beside a long one are not padded to its length.
    """
    if inputs.block_tables.device.type != "cpu":
        return [singles] if len(singles) else []
    room = max(_CACHE_BYTES // (2 * slab.block_size * slab.kv_heads * slab.head_size * dtype.itemsize), 1)
    batches, begin, width = [], 0, 0
    for at, row in enumerate(singles):
        blocks = -(-inputs.kv_lengths[row] // slab.block_size)
        if at > begin and (at + 1 - begin) * max(width, blocks) > room:
            batches.append(singles[begin:at])
            begin, width = at, 0
        width = max(width, blocks)
    return [*batches, singles[begin:]] if len(singles) else []


def _planes(tables: Tensor, slab: SlabShape) -> tuple[Tensor, ...]:
    """Of each layer the keys' planes of these blocks, then the values' planes, flat."""
    planes = torch.arange(slab.planes, device=tables.device).view(slab.layers, 2, 1)
    return (planes + tables.reshape(-1) * slab.planes).view(slab.layers, -1).unbind()


def _chunk(inputs: PagedInputs, row: int, end: int, slab: SlabShape, dtype: torch.dtype) -> Chunk:
    length, kv_length = inputs.query_lengths[row], inputs.kv_lengths[row]
    tokens = slice(end - length, end)
    if length == kv_length:
        return Chunk(tokens, kv_length, planes=None, mask=None)
    table = inputs.block_tables[row, : -(-kv_length // slab.block_size)]
    return Chunk(tokens, kv_length, _planes(table, slab), _causal_mask(length, kv_length, table.device, dtype))


def _causal_mask(length: int, kv_length: int, device: torch.device, dtype: torch.dtype) -> "Tensor | CausalBias":
    """Query i sees keys up to kv_length - length + i."""
    if device.type != "cpu":
        # It loads torch's compiler along, two seconds of a start: only where it is used.
        module: Any = importlib.import_module("torch.nn.attention.bias")
        bias: CausalBias = module.causal_lower_right(length, kv_length)
        return bias  # fused kernels know it without a mask in memory
    return torch.full((length, kv_length), -torch.inf, dtype=dtype).triu_(kv_length - length + 1)


def _decode_group(
    inputs: PagedInputs, rows: Int64Array, tokens: Int64Array, slab: SlabShape, dtype: torch.dtype
) -> DecodeGroup:
    device = inputs.block_tables.device
    kv_lengths = np.array(inputs.kv_lengths)[rows]
    used = -(-kv_lengths // slab.block_size)
    width, length, count = int(used.max()), int(kv_lengths.max()), len(rows)
    padded = np.flatnonzero(kv_lengths != length).size > 0
    stale = _stale_rows(kv_lengths, used, width, slab.block_size) if padded else np.empty(0, np.int64)
    consecutive = int(rows[-1] - rows[0]) == count - 1
    row_at, token_at, lengths, used_at, stale_at = ship(device, rows, tokens, kv_lengths, used, stale)
    tables = inputs.block_tables[rows[0] : rows[-1] + 1] if consecutive else inputs.block_tables[row_at]
    tables = tables[:, :width]
    if padded:
        # Behind a sequence's own blocks its first one is read again: another sequence's might hold no numbers at all.
        tables = torch.where(torch.arange(width, device=device) < used_at[:, None], tables, tables[:, :1])
    return DecodeGroup(
        tokens=slice(int(tokens[0]), int(tokens[0]) + count) if consecutive else token_at,
        planes=_planes(tables, slab),
        count=count,
        length=length,
        mask=_length_mask(lengths, length, dtype) if padded else None,
        stale=stale_at if padded and stale.size else None,
    )


def _length_mask(lengths: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    beyond = torch.arange(length, device=lengths.device) >= lengths[:, None]
    mask = torch.zeros(beyond.shape, dtype=dtype, device=lengths.device)
    return mask.masked_fill_(beyond, -torch.inf)[:, None, None, :]


def _stale_rows(kv_lengths: Int64Array, used: Int64Array, width: int, block_size: int) -> Int64Array:
    """Rows, among those read, that hold no token: the free rest of each sequence's last block, keys and values.

    Where that last block is also the first, it is what is read again behind it, free rest and all.
    """
    per_sequence = width * block_size
    counts = np.where(used == 1, per_sequence, used * block_size) - kv_lengths
    sequence = np.repeat(np.arange(len(counts)), counts)
    ahead = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = sequence * per_sequence + kv_lengths[sequence] + ahead
    return np.concatenate([rows, rows + len(counts) * per_sequence])
