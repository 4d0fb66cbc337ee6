"""Batches under three limits, in order of arrival, with nobody left behind."""

import random

import pytest

from triptych.engine.encoder_scheduler import Batch, BatchBudget, EncoderScheduler, WaitingItem
from triptych.engine.extents import Extents
from triptych.errors import InvariantViolation

BUDGET = BatchBudget(max_items=4, max_encoder_tokens=100, patience_seconds=1.0)


class Room:
    """Units that can be had, in any shape."""

    def __init__(self, units: int) -> None:
        self.units = units

    def place(self, item: WaitingItem) -> bool:
        if item.units > self.units:
            return False
        self.units -= item.units
        return True


def scheduler(*sizes: tuple[int, int], budget: BatchBudget = BUDGET) -> EncoderScheduler:
    made = EncoderScheduler(budget)
    for arrival, (tokens, units) in enumerate(sizes):
        made.add(arrival, tokens, units)
    return made


def arrivals(batch: Batch) -> list[int]:
    return [item.arrival for item in batch.items]


def test_items_go_in_order_up_to_the_item_limit() -> None:
    waiting = scheduler(*[(1, 1)] * 6)
    assert arrivals(waiting.next_batch(0.0, Room(99).place)) == [0, 1, 2, 3]
    assert arrivals(waiting.next_batch(0.0, Room(99).place)) == [4, 5]
    assert arrivals(waiting.next_batch(0.0, Room(99).place)) == []


def test_an_item_that_arrived_first_goes_first_however_late_it_was_prepared() -> None:
    waiting = EncoderScheduler(BUDGET)
    waiting.add(7, 60, 1)
    waiting.add(3, 60, 1)
    assert arrivals(waiting.next_batch(0.0, Room(99).place)) == [3]


def test_later_items_fill_the_token_budget_that_an_earlier_one_cannot_use() -> None:
    waiting = scheduler((60, 1), (60, 1), (40, 1))
    assert arrivals(waiting.next_batch(0.0, Room(99).place)) == [0, 2]
    assert arrivals(waiting.next_batch(0.0, Room(99).place)) == [1]


def test_an_item_above_the_token_budget_goes_alone() -> None:
    waiting = scheduler((10, 1), (250, 1), (10, 1))
    assert arrivals(waiting.next_batch(0.0, Room(99).place)) == [0, 2]
    assert arrivals(waiting.next_batch(0.0, Room(99).place)) == [1]
    waiting = scheduler((250, 1), (10, 1))
    assert arrivals(waiting.next_batch(0.0, Room(99).place)) == [0]


def test_later_items_use_the_room_that_the_first_does_not_find() -> None:
    waiting = scheduler((10, 50), (10, 5), (10, 5))
    batch = waiting.next_batch(0.0, Room(20).place)
    assert arrivals(batch) == [1, 2]
    assert batch.blocked is None


def test_after_its_patience_nobody_overtakes_an_item_that_finds_no_room() -> None:
    waiting = scheduler((10, 50), (10, 5))
    assert arrivals(waiting.next_batch(0.0, Room(20).place)) == [1]
    waiting.add(2, 10, 5)
    batch = waiting.next_batch(1.0, Room(20).place)
    assert arrivals(batch) == []
    assert batch.blocked is not None
    assert batch.blocked.arrival == 0
    assert arrivals(waiting.next_batch(1.1, Room(55).place)) == [0, 2]


def test_patience_begins_with_the_first_refusal_not_with_arrival() -> None:
    waiting = scheduler((10, 5), (10, 50), (10, 5))
    batch = waiting.next_batch(1000.0, Room(20).place)
    assert arrivals(batch) == [0, 2]
    assert batch.blocked is None


def test_room_is_not_asked_for_again_by_items_as_large_as_one_refused() -> None:
    asked: list[int] = []

    def place(item: WaitingItem) -> bool:
        asked.append(item.arrival)
        return item.units < 5

    waiting = scheduler((1, 9), (1, 9), (1, 12), (1, 4))
    assert arrivals(waiting.next_batch(0.0, place)) == [3]
    assert asked == [0, 3]


def test_removed_items_do_not_come() -> None:
    waiting = scheduler((1, 1), (1, 1))
    waiting.remove(0)
    waiting.remove(17)
    assert arrivals(waiting.next_batch(0.0, Room(99).place)) == [1]


def test_an_arrival_that_waits_twice_is_found_out() -> None:
    waiting = scheduler((1, 1))
    waiting.add(0, 1, 1)
    with pytest.raises(InvariantViolation):
        waiting.check()


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0)])
def test_empty_items_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError):
        scheduler(sizes)


def test_budgets_that_allow_nothing_are_refused() -> None:
    with pytest.raises(ValueError):
        BatchBudget(0, 1)
    with pytest.raises(ValueError):
        BatchBudget(1, 0)


class Driver:
    """A random stream of items over a real arena, on virtual time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.budget = BatchBudget(max_items=5, max_encoder_tokens=300, patience_seconds=2.0)
        self.scheduler = EncoderScheduler(self.budget)
        self.arena = Extents(64)
        self.running: list[tuple[float, int]] = []  # (ends, start)
        self.waiting: dict[int, tuple[int, int]] = {}
        self.refused_since: dict[int, float] = {}
        self.now = 0.0

    def arrive(self, arrival: int) -> None:
        self.waiting[arrival] = (self.chance.choice((16, 64, 256, 500)), self.chance.choice((1, 4, 16, 48)))
        self.scheduler.add(arrival, *self.waiting[arrival])

    def place(self, item: WaitingItem) -> bool:
        start = self.arena.reserve(item.units)
        if start is None:
            self.refused_since.setdefault(item.arrival, self.now)
            return False
        self.running.append((self.now + self.chance.uniform(0.1, 3.0), start))
        return True

    def step(self) -> list[int]:
        self.now += self.chance.uniform(0.0, 0.5)
        for ends, start in [run for run in self.running if run[0] <= self.now]:
            self.running.remove((ends, start))
            self.arena.release(start)
        overdue = [a for a, since in self.refused_since.items() if self.now - since >= self.budget.patience_seconds]
        batch = self.scheduler.next_batch(self.now, self.place)
        self._check(batch, overdue)
        for arrival in arrivals(batch):
            del self.waiting[arrival]
            self.refused_since.pop(arrival, None)
        return arrivals(batch)

    def _check(self, batch: Batch, overdue: list[int]) -> None:
        self.scheduler.check()
        self.arena.check()
        assert len(batch.items) <= self.budget.max_items
        tokens = [item.encoder_tokens for item in batch.items]
        assert len(tokens) == 1 or sum(tokens) <= self.budget.max_encoder_tokens
        assert arrivals(batch) == sorted(arrivals(batch))
        left = [arrival for arrival in overdue if arrival not in arrivals(batch)]
        assert all(arrival < min(left) for arrival in arrivals(batch) if left), (
            "an item past its patience was overtaken"
        )


@pytest.mark.parametrize("seed", range(6))
def test_random_streams_are_served_within_the_limits_and_to_the_last_item(seed: int) -> None:
    driver = Driver(seed)
    served: list[int] = []
    for arrival in range(400):
        driver.arrive(arrival)
        served += driver.step()
    for _ in range(3000):
        served += driver.step()
    assert sorted(served) == list(range(400))
    assert len(driver.scheduler) == 0
