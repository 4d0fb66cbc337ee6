"""Batches under three limits, in order of arrival, with nobody left behind."""

import random
import statistics
import time

import pytest

from triptych.engine.encoder_scheduler import Batch, BatchBudget, EncoderScheduler, WaitingItem
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


def test_room_is_refused_to_so_many_items_at_most_that_a_choice_stays_quick() -> None:
    asked: list[int] = []

    def place(item: WaitingItem) -> bool:
        asked.append(item.arrival)
        return False

    waiting = scheduler(*((1, 10_000 - arrival) for arrival in range(9_000)))
    assert arrivals(waiting.next_batch(0.0, place)) == []
    assert asked == list(range(64))


def test_an_item_is_passed_over_by_as_many_batches_at_most_as_items_were_before_it() -> None:
    waiting = scheduler((20, 1), (20, 1), (90, 1), (90, 1))
    served: list[list[int]] = []
    for turn in range(5):
        for number in range(6):  # small ones without end, to fill every gap
            waiting.add(10 + 6 * turn + number, 20, 1)
        served.append(arrivals(waiting.next_batch(100.0 * turn, Room(99).place)))
    assert served[0][:2] == [0, 1]
    assert served[1] == [2]
    assert served[2] == [3]


def test_removed_items_do_not_come() -> None:
    waiting = scheduler((1, 1), (1, 1))
    waiting.remove(0)
    waiting.remove(17)
    assert arrivals(waiting.next_batch(0.0, Room(99).place)) == [1]


def test_an_arrival_that_waits_twice_is_found_out() -> None:
    waiting = scheduler((1, 1))
    with pytest.raises(InvariantViolation, match="item 0 waits already"):
        waiting.add(0, 1, 1)
    waiting.check()


def test_an_older_request_that_joins_moves_an_item_up() -> None:
    waiting = scheduler((60, 1), (60, 1), (60, 1))
    waiting.rerank(2, (0, 1))
    waiting.check()
    assert arrivals(waiting.next_batch(0.0, Room(99).place)) == [0]
    assert arrivals(waiting.next_batch(0.0, Room(99).place)) == [2]


def test_an_item_keeps_its_patience_when_it_moves_up() -> None:
    waiting = scheduler((10, 5), (10, 50), (10, 5))
    assert arrivals(waiting.next_batch(0.0, Room(20).place)) == [0, 2]
    waiting.rerank(1, (0, 0))
    waiting.add(3, 10, 5)
    batch = waiting.next_batch(1.0, Room(20).place)
    assert arrivals(batch) == []
    assert batch.blocked is not None
    assert batch.blocked.arrival == 1


def test_a_request_is_served_whole_before_a_later_one_and_in_the_order_of_its_prompt() -> None:
    waiting = EncoderScheduler(BatchBudget(2, 100))
    for arrival, rank in enumerate([(1, 1), (0, 2), (1, 0), (0, 0), (0, 1)]):
        waiting.add(arrival, 10, 1, rank)
    order = [arrivals(waiting.next_batch(0.0, Room(99).place)) for _ in range(3)]
    assert order == [[3, 4], [1, 2], [0]]


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0)])
def test_empty_items_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError):
        scheduler(sizes)


def test_budgets_that_allow_nothing_are_refused() -> None:
    with pytest.raises(ValueError):
        BatchBudget(0, 1)
    with pytest.raises(ValueError):
        BatchBudget(1, 0)


@pytest.mark.parametrize("room", [0, 64, 10**6])
def test_a_batch_out_of_ten_thousand_takes_at_most_5_ms(room: int) -> None:
    chance = random.Random(1)
    waiting = EncoderScheduler(BatchBudget(max_items=16, max_encoder_tokens=16_384))
    for arrival in range(10_000 + 20 * 16):
        waiting.add(arrival, chance.choice((256, 1024, 4784, 31_000)), chance.choice((4, 16, 75, 484)))
    seconds = []
    for turn in range(20):
        free = Room(room)
        began = time.perf_counter()
        batch = waiting.next_batch(0.01 * turn, free.place)
        waiting.remove(10_000 - turn)
        waiting.add(20_000 + turn, 1024, 16)
        seconds.append(time.perf_counter() - began)
        assert len(batch.items) > 0 or room == 0
    waiting.check()
    assert len(waiting) >= 10_000
    assert statistics.median(seconds) <= 0.005
