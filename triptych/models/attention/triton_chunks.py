"""Causal attention of several new tokens per sequence, in Triton: over the sequence's pages or the step's own rows.

The forward pass of flash attention (https://arxiv.org/abs/2205.14135) over a list of tiles of queries, so that chunks
of any lengths make one launch; the tiles that see most keys come first, so that no processor is left with a long one
at the end. Keys that every query of a tile sees are taken without masks.

Imported only where Triton is; the tensors' device has to be the current one. With TRITON_INTERPRET=1 set before the
import it runs on the CPU, slowly.
"""

# Triton compiles annotations too, and knows none but its own.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

from dataclasses import dataclass

import numpy as np
import triton
import triton.language as tl
from torch import Tensor

from triptych.journey import Int64Array
from triptych.models.attention.base import AttentionShape
from triptych.models.attention.tuning import ChunkTuning, precision

_FIELDS = tl.constexpr(4)  # of a tile


@dataclass(frozen=True, slots=True, eq=False)
class ChunkRows:
    """Sequences with several new tokens, on the host.

    first:     [n] token of the step where each one's new tokens begin
    length:    [n] new tokens
    kv_length: [n] tokens after the step
    origin:    [n] each one's row of the block tables, or, where nothing lies before the new tokens, `first`
    """

    first: Int64Array
    length: Int64Array
    kv_length: Int64Array
    origin: Int64Array


def list_tiles(rows: ChunkRows, tuning: ChunkTuning) -> Int64Array:
    """[tiles, 4]  first token, tokens, keys that the first one sees, origin; those that see most keys come first."""
    counts = -(-rows.length // tuning.rows)
    of = np.repeat(np.arange(len(counts)), counts)
    offset = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) * tuning.rows
    tokens = np.minimum(rows.length[of] - offset, tuning.rows)
    seen = rows.kv_length[of] - rows.length[of] + offset + 1
    tiles = np.stack([rows.first[of] + offset, tokens, seen, rows.origin[of]], axis=1)
    ordered: Int64Array = tiles[np.argsort(-(seen + tokens), kind="stable")]
    return ordered


def attend_pages(
    tiles: Tensor,
    tables: Tensor,
    query: Tensor,
    kv_slab: Tensor,
    layer: int,
    output: Tensor,
    shape: AttentionShape,
    tuning: ChunkTuning,
) -> None:
    """Writes the listed tokens' results over their sequences' pages into output [tokens, heads, head_size].

    tiles: [tiles, 4] int64 of `list_tiles`, on the device, origins being rows of tables [sequences, width] int32
    """
    keys, values = kv_slab[0, layer, 0], kv_slab[0, layer, 1]
    assert tables.stride(1) == 1, f"block ids of a sequence follow one another, got strides {tables.stride()}"
    _launch(tiles, tables, query, keys, values, kv_slab.stride(0), output, shape, tuning, paged=True)


def attend_rows(
    tiles: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    shape: AttentionShape,
    tuning: ChunkTuning,
) -> None:
    """As attend_pages, of sequences that begin in this step; their keys and values are the step's own.

    tiles: [tiles, 4] int64 of `list_tiles`, on the device, origins being tokens of the step
    """
    if key.stride() != value.stride():  # one of them is a view, as where torch's own kernels made the other
        key, value = key.contiguous(), value.contiguous()
    assert key.stride() == (key.stride(0), shape.head_size, 1), f"rows of heads, got strides {key.stride()}"
    _launch(tiles, tiles, query, key, value, key.stride(0), output, shape, tuning, paged=False)


def _launch(
    tiles: Tensor,
    tables: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    key_row: int,
    output: Tensor,
    shape: AttentionShape,
    tuning: ChunkTuning,
    *,
    paged: bool,
) -> None:
    assert query.stride(1) == shape.head_size, f"heads follow one another, got strides {query.stride()}"
    _attend[(shape.heads, tiles.shape[0])](
        query,
        keys,
        values,
        tables,
        tiles,
        output,
        query.stride(0),
        key_row,
        tables.stride(0),
        shape.scale * 1.4426950408889634,  # log2(e): powers of two are what the device has
        KV_HEADS=shape.kv_heads,
        GROUP=shape.group,
        HEAD=shape.head_size,
        WIDTH=triton.next_power_of_2(shape.head_size),
        PAGE=shape.block_size,
        ROWS=tuning.rows,
        TILE=tuning.tile,
        PAGED=paged,
        PRECISION=precision(shape.dtype),
        num_warps=tuning.warps,
        num_stages=tuning.stages_over(pages=paged),
    )


@triton.jit(do_not_specialize=["table_row"], do_not_specialize_on_alignment=["tables", "tiles"])
def _attend(
    query,
    keys,
    values,
    tables,
    tiles,
    output,
    query_row,
    key_row,
    table_row,
    factor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PAGED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program for each head and tile; heads come first, so that those that share keys run side by side."""
    head = tl.program_id(0)
    told = tiles + tl.program_id(1) * _FIELDS
    first = tl.load(told)
    tokens = tl.load(told + 1).to(tl.int32)
    seen = tl.load(told + 2).to(tl.int32)
    origin = tl.load(told + 3)
    lane = tl.arange(0, ROWS)
    number = tl.arange(0, WIDTH)[None, :]
    there = (lane < tokens)[:, None] & (number < HEAD)
    token = (first + lane)[:, None]
    q = tl.load(query + token * query_row + head * HEAD + number, mask=there, other=0.0)
    most = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, WIDTH], tl.float32)
    keys += (head // GROUP) * HEAD
    values += (head // GROUP) * HEAD
    if PAGED:
        tables += origin * table_row
    else:
        keys += origin * key_row
        values += origin * key_row
    for_all = seen // TILE * TILE
    summed, weight, most = _pass(
        summed, weight, most, q, keys, values, tables, key_row, factor, 0, for_all, seen,
        KV_HEADS, HEAD, WIDTH, PAGE, ROWS, TILE, PAGED, False, PRECISION,
    )  # fmt: skip
    summed, weight, most = _pass(
        summed, weight, most, q, keys, values, tables, key_row, factor, for_all, seen + tokens - 1, seen,
        KV_HEADS, HEAD, WIDTH, PAGE, ROWS, TILE, PAGED, True, PRECISION,
    )  # fmt: skip
    out = output + token * (KV_HEADS * GROUP * HEAD) + head * HEAD + number
    tl.store(out, (summed / weight[:, None]).to(output.dtype.element_ty), mask=there)


@triton.jit
def _pass(
    summed,
    weight,
    most,
    q,
    keys,
    values,
    tables,
    key_row,
    factor,
    start,
    end,
    seen,
    KV_HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PAGED: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Takes the keys from start to end (not included); unless MASKED, all queries see all of them.

    key_row: from one key to the next, or, if PAGED, from one block to the next
    """
    lane = tl.arange(0, ROWS)
    number = tl.arange(0, WIDTH)[None, :]
    for begin in range(start, end, TILE):
        at = begin + tl.arange(0, TILE)
        inside = at < end
        if PAGED:
            if MASKED:
                page = tl.load(tables + at // PAGE, mask=inside, other=0).to(tl.int64)
            else:
                page = tl.load(tables + at // PAGE).to(tl.int64)
            place = (page * key_row + (at % PAGE) * (KV_HEADS * HEAD))[:, None] + number
        else:
            place = at.to(tl.int64)[:, None] * key_row + number
        if MASKED:
            k = tl.load(keys + place, mask=inside[:, None] & (number < HEAD), other=0.0).to(q.dtype)
        elif HEAD < WIDTH:
            k = tl.load(keys + place, mask=number < HEAD, other=0.0).to(q.dtype)
        else:
            k = tl.load(keys + place).to(q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * factor
        if MASKED:
            # The last queries of a tile that is not full are nobody's; they see what is there.
            scores = tl.where(at[None, :] < tl.minimum(seen + lane, end)[:, None], scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(most - higher)
        if MASKED:
            v = tl.load(values + place, mask=inside[:, None] & (number < HEAD), other=0.0).to(q.dtype)
        elif HEAD < WIDTH:
            v = tl.load(values + place, mask=number < HEAD, other=0.0).to(q.dtype)
        else:
            v = tl.load(values + place).to(q.dtype)
        summed = summed * fade[:, None] + tl.dot(weights.to(q.dtype), v, input_precision=PRECISION)
        weight = weight * fade + tl.sum(weights, 1)
        most = higher
    return summed, weight, most
