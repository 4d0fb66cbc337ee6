"""Attention of one query per sequence over its pages, in Triton: split along the keys, and put together again.

A sequence's keys are cut into stretches by its own length alone, so that its result does not depend on its neighbours
(flash decoding, https://crfm.stanford.edu/2023/10/12/flashdecoding.html, with the split fixed per sequence). A first
kernel lists the stretches of all sequences, once per step; programs that stay resident then work the list off in each
layer. So nothing launched depends on lengths, and long tables cost nothing where sequences are short. The query heads
that share a key head are the rows of one product: each key and value is read once.

Imported only where Triton is; the tensors' device has to be the current one. With TRITON_INTERPRET=1 set before the
import it runs on the CPU, slowly.
"""

# Triton compiles annotations too, and knows none but its own.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from triptych.models.attention.base import AttentionShape
from triptych.models.attention.tuning import DecodeTuning, precision

MOST_STRETCHES = 32  # of one sequence
_LEAST_ROWS = 16  # of a matrix product
_LEAST_SEQUENCES = 256  # that the listing kernel is compiled for, so that few batches need one of their own


@dataclass(frozen=True, slots=True, eq=False)
class DecodeRows:
    """The sequences of a step that have one new token each; integers on the device.

    kv_lengths: [n] int32  0 where a row stands for no sequence
    tables:     [sequences, width] int32
    tokens:     [n]  where each one's token stands in the step, and
    rows:       [n]  its row of the tables; None where both are 0, 1, 2, …
    """

    kv_lengths: Tensor
    tables: Tensor
    tokens: Tensor | None = None
    rows: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """What there is to do in each layer of a step.

    listed:  [4, n * MOST_STRETCHES] int32  token, row of the tables, first and last key (not included) of each stretch
    places:  [3, n] int32  of each sequence where its stretches begin in the list, how many they are, and its token
    total:   [1] int32  stretches listed
    partial: [n * MOST_STRETCHES, heads, head_size] float32, results of stretches; weight: their logarithms to base 2
    """

    listed: Tensor
    places: Tensor
    total: Tensor
    partial: Tensor
    weight: Tensor
    tables: Tensor


def list_stretches(rows: DecodeRows, shape: AttentionShape, tuning: DecodeTuning) -> Stretches:
    """Lists the stretches of a step's sequences and makes room for their results. Nothing waits for the device."""
    count, device = rows.kv_lengths.shape[0], rows.kv_lengths.device
    room = count * MOST_STRETCHES
    listed = torch.empty(4, room, dtype=torch.int32, device=device)
    places = torch.empty(3, count, dtype=torch.int32, device=device)
    total = torch.empty(1, dtype=torch.int32, device=device)
    assert rows.tables.stride(1) == 1, f"block ids of a sequence follow one another, got strides {rows.tables.stride()}"
    _list[(MOST_STRETCHES,)](
        rows.kv_lengths,
        rows.kv_lengths if rows.tokens is None else rows.tokens,
        rows.kv_lengths if rows.rows is None else rows.rows,
        listed,
        places,
        total,
        count,
        room,
        SEQUENCES=max(triton.next_power_of_2(count), _LEAST_SEQUENCES),
        SHORTEST=tuning.stretch,
        MOST=MOST_STRETCHES,
        TILE=tuning.tile,
        GIVEN=rows.tokens is not None,
        num_warps=4,
    )
    partial = torch.empty(room, shape.heads, shape.head_size, dtype=torch.float32, device=device)
    weight = torch.empty(room, shape.heads, dtype=torch.float32, device=device)
    return Stretches(listed, places, total, partial, weight, rows.tables)


def attend_stretches(
    stretches: Stretches,
    query: Tensor,
    kv_slab: Tensor,
    layer: int,
    output: Tensor,
    shape: AttentionShape,
    tuning: DecodeTuning,
    processors: int,
) -> None:
    """Writes the results of the listed sequences into their tokens' rows of output [tokens, heads, head_size].

    A row that stands for no sequence becomes zeros. processors: of the device.
    """
    assert query.stride(1) == shape.head_size, f"heads follow one another, got strides {query.stride()}"
    count = stretches.places.shape[1]
    width = triton.next_power_of_2(shape.head_size)
    programs = min(stretches.listed.shape[1] * shape.kv_heads, processors * tuning.programs)
    _attend[(programs,)](
        query,
        kv_slab[0, layer, 0],
        kv_slab[0, layer, 1],
        stretches.tables,
        stretches.listed,
        stretches.total,
        stretches.partial,
        stretches.weight,
        query.stride(0),
        stretches.tables.stride(0),
        kv_slab.stride(0),
        stretches.listed.shape[1],
        shape.scale * 1.4426950408889634,  # log2(e): powers of two are what the device has
        KV_HEADS=shape.kv_heads,
        GROUP=shape.group,
        ROWS=max(triton.next_power_of_2(shape.group), _LEAST_ROWS),
        HEAD=shape.head_size,
        WIDTH=width,
        PAGE=shape.block_size,
        TILE=tuning.tile,
        PRECISION=precision(shape.dtype),
        num_warps=tuning.warps,
        num_stages=tuning.stages,
    )
    _combine[(count, shape.heads)](
        stretches.partial,
        stretches.weight,
        stretches.places,
        output,
        count,
        HEADS=shape.heads,
        HEAD=shape.head_size,
        WIDTH=width,
        MOST=MOST_STRETCHES,
        num_warps=2,
    )


@triton.jit(
    do_not_specialize=["count", "room"], do_not_specialize_on_alignment=["kv_lengths", "tokens", "rows", "places"]
)
def _list(
    kv_lengths,
    tokens,
    rows,
    listed,
    places,
    total,
    count,
    room,
    SEQUENCES: tl.constexpr,
    SHORTEST: tl.constexpr,
    MOST: tl.constexpr,
    TILE: tl.constexpr,
    GIVEN: tl.constexpr,
):
    """One program for each number that a stretch can have in its sequence."""
    number = tl.program_id(0)
    lane = tl.arange(0, SEQUENCES)
    inside = lane < count
    length = tl.load(kv_lengths + lane, mask=inside, other=0).to(tl.int32)
    if GIVEN:
        token = tl.load(tokens + lane, mask=inside, other=0).to(tl.int32)
        row = tl.load(rows + lane, mask=inside, other=0).to(tl.int32)
    else:
        token = lane
        row = lane
    size = tl.maximum(tl.cdiv(tl.cdiv(length, MOST), TILE) * TILE, SHORTEST)
    stretches = tl.cdiv(length, size)
    begins = tl.cumsum(stretches, 0) - stretches
    mine = inside & (number < stretches)
    first = number * size
    at = listed + begins + number
    tl.store(at, token, mask=mine)
    tl.store(at + room, row, mask=mine)
    tl.store(at + 2 * room, first, mask=mine)
    tl.store(at + 3 * room, tl.minimum(first + size, length), mask=mine)
    if number == 0:
        tl.store(places + lane, begins, mask=inside)
        tl.store(places + count + lane, stretches, mask=inside)
        tl.store(places + 2 * count + lane, token, mask=inside)
        tl.store(total, tl.sum(stretches, 0))


@triton.jit(do_not_specialize=["table_row", "room"], do_not_specialize_on_alignment=["tables"])
def _attend(
    query,
    keys,
    values,
    tables,
    listed,
    total,
    partial,
    weight,
    query_row,
    table_row,
    block_row,
    room,
    factor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    lane = tl.arange(0, ROWS)
    number = tl.arange(0, WIDTH)[None, :]
    shared = (lane < GROUP)[:, None] & (number < HEAD)
    ends = tl.load(total) * KV_HEADS
    for work in range(tl.program_id(0), ends, tl.num_programs(0)):
        stretch = work // KV_HEADS
        kv_head = work % KV_HEADS
        token = tl.load(listed + stretch).to(tl.int64)
        table = tables + tl.load(listed + room + stretch).to(tl.int64) * table_row
        first = tl.load(listed + 2 * room + stretch)
        last = tl.load(listed + 3 * room + stretch)
        head = kv_head * GROUP + lane
        q = tl.load(query + token * query_row + head[:, None] * HEAD + number, mask=shared, other=0.0)
        most = tl.full([ROWS], float("-inf"), tl.float32)
        total_weight = tl.zeros([ROWS], tl.float32)
        summed = tl.zeros([ROWS, WIDTH], tl.float32)
        for start in range(first, last, TILE):
            at = start + tl.arange(0, TILE)
            inside = at < last
            page = tl.load(table + at // PAGE, mask=inside, other=0).to(tl.int64)
            place = page * block_row + (at % PAGE) * (KV_HEADS * HEAD) + kv_head * HEAD
            there = inside[:, None] & (number < HEAD)
            k = tl.load(keys + place[:, None] + number, mask=there, other=0.0).to(q.dtype)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * factor
            scores = tl.where(inside[None, :], scores, float("-inf"))
            higher = tl.maximum(most, tl.max(scores, 1))
            weights = tl.exp2(scores - higher[:, None])
            fade = tl.exp2(most - higher)
            v = tl.load(values + place[:, None] + number, mask=there, other=0.0).to(q.dtype)
            summed = summed * fade[:, None] + tl.dot(weights.to(q.dtype), v, input_precision=PRECISION)
            total_weight = total_weight * fade + tl.sum(weights, 1)
            most = higher
        out = (stretch * (KV_HEADS * GROUP) + head).to(tl.int64)
        tl.store(partial + out[:, None] * HEAD + number, summed / total_weight[:, None], mask=shared)
        tl.store(weight + out, most + tl.log2(total_weight), mask=lane < GROUP)


@triton.jit(do_not_specialize=["count"])
def _combine(
    partial,
    weight,
    places,
    output,
    count,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    MOST: tl.constexpr,
):
    """One program for each sequence and head."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    begin = tl.load(places + sequence).to(tl.int64)
    stretches = tl.load(places + count + sequence)
    token = tl.load(places + 2 * count + sequence).to(tl.int64)
    lane = tl.arange(0, MOST)
    number = tl.arange(0, WIDTH)
    at = (begin + lane) * HEADS + head
    mine = lane < stretches
    logarithm = tl.load(weight + at, mask=mine, other=float("-inf"))
    # Of a row that stands for no sequence there are none: its highest is no number to subtract.
    highest = tl.where(stretches > 0, tl.max(logarithm, 0), 0.0)
    weights = tl.exp2(logarithm - highest)
    there = mine[:, None] & (number < HEAD)[None, :]
    results = tl.load(partial + at[:, None] * HEAD + number[None, :], mask=there, other=0.0)
    summed = tl.sum(results * weights[:, None], 0)
    combined = summed / tl.where(stretches > 0, tl.sum(weights, 0), 1.0)
    tl.store(output + (token * HEADS + head) * HEAD + number, combined.to(output.dtype.element_ty), mask=number < HEAD)
