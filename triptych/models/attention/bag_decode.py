"""Attention of sequences with one new token each in float32 on the CPU, by torch's embedding_bag.

That sums rows of a table, each times a weight, and fetches ahead what it will read: values are read where they lie in
the slab, keys in the copy that key_columns.py keeps. torch's scaled_dot_product_attention wants both copied together
in each layer of each step, and multiplies so few queries badly. One core of an AMD EPYC, 16 sequences of 270 tokens,
4 heads of 64 over 2, 6 layers: 1.7 ms instead of 3.4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triptych.journey import BoolArray, Int32Array, Int64Array
from triptych.models.attention.base import AttentionShape
from triptych.models.attention.key_columns import KeyColumns
from triptych.models.base import PagedInputs

_MOST_ROWS = 2**31 - 1  # they are told in 32 bits
_PADDED_TOKENS = 1024  # that cost about what another batch does


@dataclass(frozen=True, slots=True, eq=False)
class Bags:
    """Sequences of about the same length.

    tokens:  [n] or slice  where their tokens stand in the step
    width:   chunks of the longest
    keys:    rows of the keys' table, [n, heads, width, head_size] int32, flat, and where each bag begins
    values:  rows of the values' table, [n, heads, padded length] int32, flat, and where each bag begins
    mask:    [n, 1, padded length]  0 or -inf
    columns: [n * kv_heads * head_size] int64  where in the keys' table the step's keys go
    """

    tokens: slice | Tensor
    count: int
    width: int
    keys: tuple[Tensor, Tensor]
    values: tuple[Tensor, Tensor]
    mask: Tensor
    columns: Tensor


class BagDecode:
    """Of one shape. Used by one thread; keeps the keys of the sequences of the last step."""

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self._columns: KeyColumns | None = None

    def takes(self, kv_slab: Tensor) -> bool:
        """Whether this is the faster way over this slab."""
        is_plain = kv_slab.device.type == "cpu" and kv_slab.dtype == self._shape.dtype == torch.float32
        return is_plain and kv_slab.numel() // self._shape.head_size <= _MOST_ROWS

    def step(self, inputs: PagedInputs, kv_slab: Tensor) -> "BagStep":
        """Of those sequences that have one new token and whose history is told, as far as there is room for keys."""
        if self._columns is None:
            self._columns = KeyColumns(kv_slab)
        columns = self._columns
        singles = [row for row, history in enumerate(inputs.histories) if history and inputs.query_lengths[row] == 1]
        if singles:  # else nobody decodes in this step, who will in the next
            columns.keep(inputs.histories[row] for row in singles)
        chunks: dict[int, list[int]] = {}
        for row in singles:
            held = columns.hold(inputs.histories[row], inputs.kv_lengths[row], kv_slab, inputs.block_tables[row])
            if held is not None:
                chunks[row] = held
        ends = np.cumsum(inputs.query_lengths)
        alike = _alike(chunks, columns.chunk_tokens)
        batches = [self._bags(inputs, rows, ends[rows] - 1, chunks, columns.chunk_tokens) for rows in alike]
        return BagStep(batches, frozenset(chunks), columns.pool, kv_slab, self._shape)

    def _bags(
        self,
        inputs: PagedInputs,
        rows: Int64Array,
        tokens: Int64Array,
        chunks: Mapping[int, Sequence[int]],
        chunk_tokens: int,
    ) -> Bags:
        shape, count = self._shape, len(rows)
        sides = (count, shape.kv_heads, shape.group)
        lengths = np.array(inputs.kv_lengths)[rows]
        held = [chunks[row] for row in rows.tolist()]
        width = max(map(len, held))
        padded = width * chunk_tokens
        # Behind a sequence's own chunks its first one is read again, and weighs nothing.
        table = np.array([[*each, *[each[0]] * (width - len(each))] for each in held], dtype=np.int32)
        numbers = np.arange(shape.kv_heads * shape.head_size, dtype=np.int32).reshape(shape.kv_heads, 1, 1, -1)
        per_chunk = shape.layers * shape.kv_heads * shape.head_size
        keys = np.empty((*sides, width, shape.head_size), dtype=np.int32)
        keys[...] = (table * np.int32(per_chunk))[:, None, None, :, None] + numbers
        values = np.empty((*sides, padded), dtype=np.int32)
        places, seen = _places(inputs.block_tables.numpy()[rows], lengths, padded, shape)
        values[...] = places[:, None, None, :] + np.arange(shape.kv_heads, dtype=np.int32)[:, None, None]
        mask = np.zeros((count, 1, padded), dtype=np.float32)
        mask[~seen[:, None]] = -np.inf
        last = lengths - 1
        begins = table[np.arange(count), last // chunk_tokens].astype(np.int64) * (per_chunk * chunk_tokens)
        columns = (begins + last % chunk_tokens)[:, None] + np.arange(numbers.size) * chunk_tokens
        return Bags(
            tokens=_span(tokens),
            count=count,
            width=width,
            keys=_flat(keys, shape.head_size),
            values=_flat(values, padded),
            mask=torch.from_numpy(mask),
            columns=torch.from_numpy(columns.reshape(-1)),
        )


class BagStep:
    """The sequences of a step that are attended to here. rows: which those are"""

    def __init__(
        self, batches: Sequence[Bags], rows: frozenset[int], pool: Tensor, kv_slab: Tensor, shape: AttentionShape
    ) -> None:
        self.batches = batches
        self.rows = rows
        self._keys = pool.view(-1, pool.shape[-1])
        self._values = kv_slab.view(-1, shape.head_size)
        self._shape = shape

    def attend(self, batch: Bags, layer: int, query: Tensor, key: Tensor) -> Tensor:
        """[n, heads, head_size] of the batch's queries [n, heads, head_size] and new keys [n, kv_heads, head_size]."""
        shape = self._shape
        first = layer * shape.kv_heads * shape.head_size
        keys = self._keys[first:]
        keys.view(-1).scatter_(0, batch.columns, key.reshape(-1))
        numbers = (query * shape.scale)[:, :, None].expand(-1, -1, batch.width, -1).reshape(-1)
        scores = _sums(keys, batch.keys, numbers).view(batch.count, shape.heads, -1)
        weights = scores.add_(batch.mask).softmax(-1).view(-1)
        plane = (2 * layer + 1) * shape.block_size * shape.kv_heads
        return _sums(self._values[plane:], batch.values, weights).view(query.shape)


def _sums(table: Tensor, bags: tuple[Tensor, Tensor], weights: Tensor) -> Tensor:
    """[bags, numbers] weighted sums of the table's rows."""
    summed: Tensor = torch.embedding_bag(table, *bags, False, 0, False, weights)[0]
    return summed


def _alike(chunks: Mapping[int, Sequence[int]], chunk_tokens: int) -> list[Int64Array]:
    """Rows in batches, each padded to its longest; the shorter ones of very different lengths are on their own."""
    ordered = sorted(chunks, key=lambda row: -len(chunks[row]))
    batches: list[list[int]] = []
    padded, width = 0, 0
    for row in ordered:
        padded += (width - len(chunks[row])) * chunk_tokens
        if not batches or padded > _PADDED_TOKENS:
            batches.append([])
            padded, width = 0, len(chunks[row])
        batches[-1].append(row)
    return [np.array(sorted(rows)) for rows in batches]


def _places(
    tables: Int64Array, lengths: Int64Array, padded: int, shape: AttentionShape
) -> tuple[Int32Array, BoolArray]:
    """Of each token [n, padded] the row of its first value in the first layer's keys' plane; its sequence has it.

    What stands behind a sequence's tokens is its first one.
    """
    at = np.arange(padded)
    seen = at < lengths[:, None]
    blocks = np.minimum(at // shape.block_size, tables.shape[1] - 1)
    rows = tables[:, blocks] * (shape.layers * 2 * shape.block_size) + at % shape.block_size
    return (np.where(seen, rows, rows[:, :1]) * shape.kv_heads).astype(np.int32), seen


def _span(tokens: Int64Array) -> slice | Tensor:
    first, count = int(tokens[0]), len(tokens)
    if int(tokens[-1]) - first == count - 1:
        return slice(first, first + count)
    return torch.from_numpy(tokens)


def _flat(rows: Int32Array, size: int) -> tuple[Tensor, Tensor]:
    """For embedding_bag: rows, flat, and where each bag of so many begins."""
    return torch.from_numpy(rows.reshape(-1)), torch.arange(0, rows.size, size, dtype=torch.int32)
