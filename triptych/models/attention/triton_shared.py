"""Stretches of keys that several sequences have in common, attended to once for all of them.

Sequences that begin alike (the same images, the same instructions) have the same blocks, because the prefix cache gives
them out again. Where a stretch of one lies in the same blocks as a stretch of another, the queries of both are rows of
one product, and its keys and values are read once. After the cascade of FlashInfer
(https://flashinfer.ai/2024/02/02/cascade-inference.html) and Hydragen (https://arxiv.org/abs/2402.05099); here it is no
other way to decode: stretches stay those of `triton_decode`, cut by each sequence's own length, and so do the results
that are put together. Found on the device, from the tables themselves, once per step.

Imported only where Triton is, as `triton_decode`.
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

_ROWS = 64  # of a product: query heads of several sequences, which share a key head
_LEAST_SEQUENCES = 256  # as for the listing kernel
_AT_ONCE = 16  # sequences, or blocks, that a sequence is compared with in one pass


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Sequences with a stretch in common, for each number that a stretch can have in its sequence.

    counts: [most] int32  groups of each number
    told:   [4, most * n] int32  row of the tables, first and last key (not included), members; `n` to each number
    seats:  [2, most * n, seats] int32  of each member its token, and where its stretch stands in the list
    """

    counts: Tensor
    told: Tensor
    seats: Tensor


def seats_of(shape: AttentionShape) -> int:
    """Sequences that share a product; fewer than two where their heads fill one by themselves."""
    return _ROWS // shape.group


def find_groups(listed: Tensor, places: Tensor, tables: Tensor, shape: AttentionShape, most: int) -> Groups:
    """Takes what sequences have in common out of the list, as of Stretches. Nothing waits for the device.

    most: stretches of one sequence
    """
    count, device = places.shape[1], listed.device
    counts = torch.empty(most, dtype=torch.int32, device=device)
    told = torch.empty(4, most * count, dtype=torch.int32, device=device)
    seats = torch.empty(2, most * count, seats_of(shape), dtype=torch.int32, device=device)
    marks = torch.empty(most, count, dtype=torch.int64, device=device)
    notes = torch.empty(2, most, count, dtype=torch.int32, device=device)
    _find[(most,)](
        listed,
        places,
        tables,
        counts,
        told,
        seats,
        marks,
        notes,
        tables.stride(0),
        count,
        listed.shape[1],
        most * count,
        SEQUENCES=max(triton.next_power_of_2(count), _LEAST_SEQUENCES),
        SEATS=seats_of(shape),
        PAGE=shape.block_size,
        AT_ONCE=_AT_ONCE,
        num_warps=8,
    )
    return Groups(counts, told, seats)


def attend_groups(
    groups: Groups,
    tables: Tensor,
    query: Tensor,
    kv_slab: Tensor,
    layer: int,
    partial: Tensor,
    weight: Tensor,
    shape: AttentionShape,
    tuning: DecodeTuning,
    processors: int,
) -> None:
    """Writes the results of all members' stretches where those of their own would stand; as `attend_stretches`."""
    _attend_groups[(processors * tuning.shared_programs,)](
        query,
        kv_slab[0, layer, 0],
        kv_slab[0, layer, 1],
        tables,
        groups.counts,
        groups.told,
        groups.seats,
        partial,
        weight,
        query.stride(0),
        tables.stride(0),
        kv_slab.stride(0),
        groups.told.shape[1],
        shape.scale * 1.4426950408889634,  # log2(e), as in `triton_decode`
        MOST=groups.counts.shape[0],
        KV_HEADS=shape.kv_heads,
        GROUP=shape.group,
        SEATS=seats_of(shape),
        ROWS=_ROWS,
        HEAD=shape.head_size,
        WIDTH=triton.next_power_of_2(shape.head_size),
        PAGE=shape.block_size,
        TILE=tuning.tile,
        PRECISION=precision(shape.dtype),
        num_warps=tuning.warps,
        num_stages=tuning.stages,
    )


@triton.jit(do_not_specialize=["table_row", "count", "room", "most_room"], do_not_specialize_on_alignment=["tables"])
def _find(
    listed,
    places,
    tables,
    counts,
    told,
    seats,
    marks,
    notes,
    table_row,
    count,
    room,
    most_room,
    SEQUENCES: tl.constexpr,
    SEATS: tl.constexpr,
    PAGE: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """One program for each number that a stretch can have in its sequence."""
    number = tl.program_id(0)
    lane = tl.arange(0, SEQUENCES)
    inside = lane < count
    stretches = tl.load(places + count + lane, mask=inside, other=0)
    mine = inside & (number < stretches)
    at = tl.load(places + lane, mask=mine, other=0) + number
    row = tl.load(listed + room + at, mask=mine, other=0)
    first = tl.load(listed + 2 * room + at, mask=mine, other=0)
    last = tl.load(listed + 3 * room + at, mask=mine, other=0)
    whole = mine & (first % PAGE == 0) & (last % PAGE == 0)

    # A mark of the blocks, so that one comparison tells stretches apart; and the last block itself, which alone tells
    # what lies before it: the cache gives a block out again only behind the tokens that it was computed behind.
    table = tables + row.to(tl.int64) * table_row + first // PAGE
    pages = tl.where(whole, (last - first) // PAGE, 0)
    mark = first.to(tl.int64)
    for begin in range(0, tl.max(pages, 0), AT_ONCE):
        place = begin + tl.arange(0, AT_ONCE)
        there = place[None, :] < pages[:, None]
        block = tl.load(table[:, None] + place[None, :], mask=there, other=0).to(tl.int64)
        mixed = (block + 1) * 0x1E3779B97F4A7C15 + place[None, :].to(tl.int64) * 0x2545F4914F6CDD1D
        mixed = (mixed ^ (mixed >> 29)) * 0x3F58476D1CE4E5B9
        mark += tl.sum(tl.where(there, mixed ^ (mixed >> 32), 0), 1)
    end = tl.load(table + pages - 1, mask=whole, other=0)
    end = tl.where(whole, end, -1 - lane)  # like nobody's
    tl.store(marks + number * count + lane, mark, mask=inside)
    tl.store(notes + number * count + lane, end, mask=inside)
    tl.debug_barrier()

    leader = lane
    members = tl.zeros([SEQUENCES], tl.int32)
    rank = tl.zeros([SEQUENCES], tl.int32)
    for begin in range(0, count, AT_ONCE):
        other = begin + tl.arange(0, AT_ONCE)
        known = other < count
        its_mark = tl.load(marks + number * count + other, mask=known, other=0)
        its_end = tl.load(notes + number * count + other, mask=known, other=-1 - SEQUENCES)
        same = (mark[:, None] == its_mark[None, :]) & (end[:, None] == its_end[None, :]) & inside[:, None]
        leader = tl.minimum(leader, tl.min(tl.where(same, other[None, :], SEQUENCES), 1))
        members += tl.sum(same.to(tl.int32), 1)
        rank += tl.sum((same & (other[None, :] < lane[:, None])).to(tl.int32), 1)
    shared = whole & (members > 1)

    # Groups of as many as have seats, in the order of their first members.
    own = tl.where(shared & (rank == 0), tl.cdiv(members, SEATS), 0)
    tl.store(notes + (tl.num_programs(0) + number) * count + lane, own, mask=inside)
    tl.debug_barrier()
    before = tl.zeros([SEQUENCES], tl.int32)
    for begin in range(0, count, AT_ONCE):
        other = begin + tl.arange(0, AT_ONCE)
        its_own = tl.load(notes + (tl.num_programs(0) + number) * count + other, mask=other < count, other=0)
        before += tl.sum(tl.where(other[None, :] < leader[:, None], its_own[None, :], 0), 1)
    group = number * count + before + rank // SEATS
    seat = rank % SEATS
    begins = shared & (seat == 0)
    tl.store(told + group, row, mask=begins)
    tl.store(told + most_room + group, first, mask=begins)
    tl.store(told + 2 * most_room + group, last, mask=begins)
    tl.store(told + 3 * most_room + group, tl.minimum(members - rank, SEATS), mask=begins)
    token = tl.load(places + 2 * count + lane, mask=shared, other=0)
    sits = seats + group.to(tl.int64) * SEATS + seat
    tl.store(sits, token, mask=shared)
    tl.store(sits + most_room * SEATS, at, mask=shared)
    tl.store(counts + number, tl.sum(own, 0))
    tl.store(listed + 3 * room + at, first, mask=shared)


@triton.jit(do_not_specialize=["table_row", "most_room"], do_not_specialize_on_alignment=["tables"])
def _attend_groups(
    query,
    keys,
    values,
    tables,
    counts,
    told,
    seats,
    partial,
    weight,
    query_row,
    table_row,
    block_row,
    most_room,
    factor,
    MOST: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SEATS: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    numbers = tl.arange(0, MOST)
    each = tl.load(counts + numbers)
    ends = tl.cumsum(each, 0)
    lane = tl.arange(0, ROWS)
    member = lane // GROUP
    number = tl.arange(0, WIDTH)[None, :]
    for work in range(tl.program_id(0), tl.sum(each, 0) * KV_HEADS, tl.num_programs(0)):
        unit = work // KV_HEADS
        kv_head = work % KV_HEADS
        stretch = tl.sum((ends <= unit).to(tl.int32), 0)
        group = stretch * (most_room // MOST) + unit - tl.sum(tl.where(numbers < stretch, each, 0), 0)
        table = tables + tl.load(told + group).to(tl.int64) * table_row
        first = tl.load(told + most_room + group)
        last = tl.load(told + 2 * most_room + group)
        taken = member < tl.load(told + 3 * most_room + group)
        sits = seats + group.to(tl.int64) * SEATS + member
        token = tl.load(sits, mask=taken, other=0).to(tl.int64)
        slot = tl.load(sits + most_room * SEATS, mask=taken, other=0).to(tl.int64)
        head = kv_head * GROUP + lane % GROUP
        shared = taken[:, None] & (number < HEAD)
        q = tl.load(query + (token * query_row + head * HEAD)[:, None] + number, mask=shared, other=0.0)
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
        out = slot * (KV_HEADS * GROUP) + head
        tl.store(partial + out[:, None] * HEAD + number, summed / total_weight[:, None], mask=shared)
        tl.store(weight + out, most + tl.log2(total_weight), mask=taken)
