"""KV between the slab and host memory, and what to reserve for answers."""

import random

import pytest
import torch

from triptych.engine import swap as swap_module
from triptych.engine.host_slots import HostSlots
from triptych.engine.margins import LEAST_ANSWERS, REMEMBERED_ANSWERS, UNKNOWN_TOKENS, AnswerLengths
from triptych.engine.plan import Swap
from triptych.engine.swap import SwapSpace
from triptych.errors import InvariantViolation

CPU = torch.device("cpu")
BLOCK_BYTES = 48


@pytest.mark.parametrize("slots_in_a_chunk", [1, 3, 100])
def test_blocks_come_back_as_they_went(monkeypatch: pytest.MonkeyPatch, slots_in_a_chunk: int) -> None:
    monkeypatch.setattr(swap_module, "CHUNK_BYTES", slots_in_a_chunk * BLOCK_BYTES)
    rng = random.Random(slots_in_a_chunk)
    slab = torch.randint(0, 256, (16, BLOCK_BYTES), dtype=torch.uint8)
    space, wanted, host = SwapSpace(BLOCK_BYTES, 10, CPU), slab.clone(), {}
    for _ in range(300):
        out = rng.random() < 0.5 or not host
        slots = rng.sample(range(10) if out else sorted(host), rng.randrange(1, (10 if out else len(host)) + 1))
        if rng.random() < 0.5:
            slots.sort()  # so that some lie side by side
        first = rng.randrange(16 - len(slots) + 1)
        blocks = list(range(first, first + len(slots))) if rng.random() < 0.7 else rng.sample(range(16), len(slots))
        for block, slot in zip(blocks, slots, strict=True):
            if out:
                host[slot] = wanted[block].clone()
            else:
                wanted[block] = host[slot]
        space.move(slab, [Swap(tuple(blocks), tuple(slots), out)])
        assert torch.equal(slab, wanted)


def test_a_slot_is_read_before_a_later_move_writes_it() -> None:
    slab = torch.arange(3, dtype=torch.uint8).repeat_interleave(BLOCK_BYTES).view(3, BLOCK_BYTES)
    space = SwapSpace(BLOCK_BYTES, 1, CPU)
    space.move(slab, [Swap((0,), (0,), out=True)])
    space.move(slab, [Swap((1,), (0,), out=False), Swap((2,), (0,), out=True), Swap((0,), (0,), out=False)])
    assert slab[:, 0].tolist() == [2, 0, 2]


def test_no_memory_is_made_before_it_is_needed() -> None:
    space = SwapSpace(1 << 20, 1 << 30, CPU)  # a petabyte
    space.move(torch.zeros(1, 1 << 20, dtype=torch.uint8), [Swap((0,), (12345,), out=True)])


def test_slots_are_taken_all_or_none() -> None:
    slots = HostSlots(3)
    first = slots.take(2)
    assert first is not None
    assert len(set(first)) == 2
    assert slots.take(2) is None
    assert slots.num_free == 1
    slots.check(first)
    slots.give_back(first)
    assert slots.num_free == 3
    assert slots.take(0) == ()


def test_a_slot_that_comes_back_twice_is_found() -> None:
    slots = HostSlots(3)
    taken = slots.take(2)
    assert taken is not None
    slots.give_back(taken[:1])
    with pytest.raises(InvariantViolation, match="2 slots hold KV, 2 are free of 3"):
        slots.check(taken)
    slots.give_back(taken[1:])
    with pytest.raises(InvariantViolation, match="4 slots are free, there are 3"):
        slots.give_back(taken[:1])


def test_a_swap_needs_a_slot_for_each_block() -> None:
    with pytest.raises(InvariantViolation, match="2 blocks are swapped with 1 slots"):
        Swap((1, 2), (0,), out=True)


def test_what_is_reserved_is_what_three_of_four_recent_answers_needed() -> None:
    lengths = AnswerLengths()
    for _ in range(LEAST_ANSWERS - 1):
        lengths.record(10)
    assert lengths.margin() == UNKNOWN_TOKENS
    lengths.record(10)
    assert lengths.margin() == 10
    for length in range(1, REMEMBERED_ANSWERS + 1):
        lengths.record(length)
    share = sum(length <= lengths.margin() for length in range(1, REMEMBERED_ANSWERS + 1)) / REMEMBERED_ANSWERS
    assert 0.74 < share < 0.76, "what was said long ago is forgotten"


def test_a_fixed_margin_learns_nothing() -> None:
    lengths = AnswerLengths(fixed=7)
    for _ in range(100):
        lengths.record(1000)
    assert lengths.margin() == 7
