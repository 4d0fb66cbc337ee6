"""Rows that leave the arena for host memory come back as they were, or not at all."""

import pytest
import torch

from tests.engine_encoder.tiers import CPU, UNIT, Arena, key, rows_of
from triptych.engine.cache_control import CacheAction, control
from triptych.engine.host_tier import Demotion, HostTier
from triptych.engine.store_entry import Acquired
from triptych.errors import ConfigError, InvariantViolation


def test_rows_that_make_way_come_back_without_being_made_again() -> None:
    arena = Arena(num_units=9, host_units=30)
    for name in (7, 8, 9, 7, 8, 9, 7):  # 2, 3 and 4 units; then all three no longer fit beside 12's 7
        arena.ready(name)
    for name in (12, 7, 8, 9, 12, 9, 8, 7, 12):
        arena.ready(name)
    assert arena.made == 4
    assert arena.host.promotions > 5
    assert arena.host.demotions >= arena.host.promotions


def test_bytes_are_the_same_after_leaving_coming_back_and_leaving_again() -> None:
    arena = Arena(num_units=8, host_units=30)
    arena.ready(6)  # 8 units: each of these takes the whole arena
    for name in (13, 6, 13, 6):
        assert arena.ready(name) is Acquired.NEW
    assert arena.made == 2
    (slot,) = arena.host.slots
    assert torch.equal(arena.host._memory[slot.start * UNIT : slot.span.stop * UNIT], rows_of(key(13)))


def test_a_host_copy_comes_back_with_its_checksum_and_a_new_generation() -> None:
    arena = Arena(num_units=8, host_units=8)
    entry, _ = arena.acquire(6)
    assert arena.store.place(entry)
    arena.write([entry])
    arena.store.publish(entry, checksum=b"sum")
    arena.store.release(entry)
    other, _ = arena.acquire(13)
    assert arena.store.place(other)
    (demotion,) = arena.store.take_demotions()
    assert (demotion.span, demotion.slot.checksum, demotion.slot.rows) == (range(8), b"sum", 4)
    arena.store.abandon(other)
    again, acquired = arena.acquire(6)
    assert acquired is Acquired.NEW
    assert again.host is demotion.slot
    assert arena.store.place(again)
    assert again.generation > entry.generation


def test_rows_in_the_arena_are_not_kept_twice() -> None:
    arena = Arena(num_units=8, host_units=16)
    arena.ready(6)
    arena.ready(13)
    assert [slot.key for slot in arena.host.slots] == [key(6)]
    arena.ready(6)
    assert [slot.key for slot in arena.host.slots] == [key(13)]


def test_a_full_host_tier_forgets_what_was_used_longest_ago() -> None:
    arena = Arena(num_units=8, host_units=16)
    for name in (6, 13, 20, 27):
        arena.ready(name)
    assert {slot.key for slot in arena.host.slots} == {key(13), key(20)}
    assert arena.host.free_bytes == 0


def test_a_slot_that_somebody_waits_for_is_never_given_to_others() -> None:
    arena = Arena(num_units=8, host_units=8)
    arena.ready(6)
    arena.ready(13)  # 6 is on the host, which it fills
    waiting, _ = arena.acquire(6)
    arena.ready(20)  # 13 must leave, and finds no room on the host
    assert [slot.key for slot in arena.host.slots] == [key(6)]
    assert arena.store.place(waiting)
    assert arena.write([waiting]) == []
    assert torch.equal(arena.rows(waiting), rows_of(key(6)))


def test_a_wish_that_ends_early_leaves_the_slot_to_the_next() -> None:
    arena = Arena(num_units=8, host_units=8)
    arena.ready(6)
    arena.ready(13)
    waiting, _ = arena.acquire(6)
    arena.store.release(waiting)
    arena.store.check()
    assert arena.ready(6) is Acquired.NEW
    assert arena.made == 2


def test_rows_whose_copy_failed_are_never_read_and_made_again_when_asked_for() -> None:
    arena = Arena(num_units=8, host_units=16)
    arena.ready(6)
    other, _ = arena.acquire(13)
    assert arena.store.place(other)
    early, _ = arena.acquire(6)  # finds the slot before its copy has failed
    assert arena.write([other], torn=True) == []
    arena.store.publish(other)
    arena.store.release(other)
    arena.store.check()
    assert arena.host.failures == 1
    assert arena.store.place(early)
    assert arena.write([early]) == [early]
    arena.store.abandon(early)
    arena.store.check()
    assert arena.ready(6) is Acquired.NEW
    assert arena.made == 3


def test_rows_are_saved_before_the_same_batch_writes_over_them_and_reads_them_back() -> None:
    arena = Arena(num_units=8, host_units=8)
    claimed, _ = arena.acquire(7)
    assert arena.store.place(claimed)
    arena.write([claimed])
    arena.store.publish(claimed)
    arena.store.make_way(8)  # 7 is found no more, and leaves with its last claim
    arena.store.release(claimed)
    again, _ = arena.acquire(7)
    assert again.host is not None
    assert arena.store.place(again)
    assert arena.write([again]) == []
    assert torch.equal(arena.rows(again), rows_of(key(7)))
    assert arena.made == 1


def test_rows_cleared_before_they_are_saved_still_reach_who_waits_for_them() -> None:
    arena = Arena(num_units=8, host_units=8)
    arena.ready(6)
    other, _ = arena.acquire(13)
    assert arena.store.place(other)  # 6 makes way, and is not saved yet
    waiting, _ = arena.acquire(6)
    control(arena.store, CacheAction.CLEAR, [key(6).digest])
    assert arena.acquire(6)[0].host is None
    arena.write([other])
    arena.store.publish(other)
    arena.store.release(other)
    assert arena.store.place(waiting)
    assert arena.write([waiting]) == []
    assert torch.equal(arena.rows(waiting), rows_of(key(6)))
    arena.store.publish(waiting)
    arena.store.check()
    assert arena.host.free_bytes == 8 * UNIT


def test_an_item_larger_than_the_host_tier_is_forgotten() -> None:
    arena = Arena(num_units=8, host_units=4)
    arena.ready(6)
    arena.ready(13)
    assert len(arena.host.slots) == 0
    assert arena.host.demotions == 0


def test_memory_that_holds_no_unit_or_another_number_is_refused() -> None:
    assert HostTier.create(0, UNIT, CPU) is None
    with pytest.raises(ConfigError, match=r"host_cache_bytes is 63, expected 0 or at least 64"):
        HostTier.create(UNIT - 1, UNIT, CPU)
    for more_than_there_is in (1 << 56, 1 << 80):
        with pytest.raises(ConfigError, match=f"host_cache_bytes is {more_than_there_is}, more than this host has"):
            HostTier.create(more_than_there_is, UNIT, CPU)
    with pytest.raises(ConfigError, match="expected 128 bytes"):
        HostTier(2, UNIT, torch.zeros(UNIT, dtype=torch.uint8))
    tier = HostTier.create(3 * UNIT + 1, UNIT, CPU)
    assert tier is not None
    assert tier.num_bytes == 3 * UNIT


def test_a_slot_that_nobody_holds_cannot_be_let_go_and_one_that_is_gone_not_held() -> None:
    tier = HostTier(4, UNIT, torch.zeros(4 * UNIT, dtype=torch.uint8))
    slot = tier.admit(key(1), 2, b"")
    assert slot is not None
    with pytest.raises(InvariantViolation, match="nobody holds"):
        tier.let_go(slot)
    tier.drop(slot)
    with pytest.raises(InvariantViolation, match="find any more"):
        tier.hold(slot)
    tier.settle([Demotion(range(2), slot)])
    tier.check()
