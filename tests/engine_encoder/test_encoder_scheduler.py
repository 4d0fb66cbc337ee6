"""Batches under three limits, in order of arrival, with nobody left behind."""

import random
import statistics
import time
from collections.abc import Callable, Iterator

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


def test_room_is_refused_to_so_many_items_at_most_that_a_choice_stays_quick() -> None:
    asked: list[int] = []

    def place(item: WaitingItem) -> bool:
        asked.append(item.arrival)
        return False

    waiting = scheduler(*((1, 10_000 - arrival) for arrival in range(9_000)))
    assert arrivals(waiting.next_batch(0.0, place)) == []
    assert asked == list(range(64))


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


MOST_WAITING = 40


class PlainList:
    """The same rules by plain counting: one list, sorted anew for every batch, looked at item by item."""

    def __init__(self, budget: BatchBudget) -> None:
        self.budget = budget
        self.waiting: dict[int, WaitingItem] = {}
        self.refused_since: dict[int, float] = {}

    def next_batch(self, now: float, place: Callable[[WaitingItem], bool]) -> Batch:
        taken: list[WaitingItem] = []
        blocked, units_refused = None, 10**9
        for item in sorted(self.waiting.values(), key=lambda item: (item.rank, item.arrival)):
            tokens = sum(other.encoder_tokens for other in taken) + item.encoder_tokens
            allowed = not taken or tokens <= self.budget.max_encoder_tokens
            if allowed and item.units < units_refused and place(item):
                taken.append(item)
                if len(taken) == self.budget.max_items:
                    break
                continue
            if allowed:
                self.refused_since.setdefault(item.arrival, now)
                units_refused = min(units_refused, item.units)
            if now - self.refused_since.get(item.arrival, now) >= self.budget.patience_seconds:
                blocked = item if allowed else None
                break
        for item in taken:
            self.remove(item.arrival)
        return Batch(tuple(taken), blocked)

    def remove(self, arrival: int) -> None:
        self.waiting.pop(arrival, None)
        self.refused_since.pop(arrival, None)


class Driver:
    """A random stream of items over a real arena, on virtual time; the scheduler and a plain list side by side."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.budget = BatchBudget(self.chance.randint(1, 6), 300, self.chance.choice((0.0, 2.0)))
        self.scheduler = EncoderScheduler(self.budget)
        self.plain = PlainList(self.budget)
        self.arena = Extents(64)
        self.running: list[tuple[float, int]] = []  # (ends, start)
        self.answers: list[tuple[WaitingItem, bool]] = []  # of the arena, for the batch being drawn up
        self.now = 0.0
        self.arrived = 0
        self.gone: list[int] = []

    def arrive(self) -> None:
        if len(self.scheduler) == MOST_WAITING:
            return
        rank = (self.arrived - self.chance.choice((0, 0, 0, 1, 5)), self.chance.randint(0, 3))
        tokens, units = self.chance.choice((16, 64, 256, 500)), self.chance.choice((1, 4, 16, 48))
        self.scheduler.add(self.arrived, tokens, units, rank)
        self.plain.waiting[self.arrived] = WaitingItem(self.arrived, tokens, units, rank)
        self.arrived += 1

    def cancel(self) -> None:
        arrival = self.chance.choice([*self.plain.waiting, self.chance.randint(0, self.arrived)])
        self.gone += [arrival] if arrival in self.plain.waiting else []
        self.scheduler.remove(arrival)
        self.plain.remove(arrival)

    def move_up(self) -> None:
        if self.plain.waiting:
            item = self.chance.choice(list(self.plain.waiting.values()))
            rank = (item.rank[0] - self.chance.randint(0, 3), item.rank[1])
            self.scheduler.rerank(item.arrival, rank)
            self.plain.waiting[item.arrival] = WaitingItem(item.arrival, item.encoder_tokens, item.units, rank)

    def encode(self) -> None:
        for ends, start in [run for run in self.running if run[0] <= self.now]:
            self.running.remove((ends, start))
            self.arena.release(start)
        self.answers = []
        batch = self.scheduler.next_batch(self.now, self._place)
        answers = iter(self.answers)
        expected = self.plain.next_batch(self.now, lambda item: self._answer_again(item, answers))
        assert batch == expected
        assert next(answers, None) is None, "room was asked for that the rules do not ask for"
        self.gone += arrivals(batch)

    def step(self, acts: list[Callable[[], None]]) -> None:
        self.now += self.chance.uniform(0.0, 0.3)
        self.chance.choice(acts)()
        self.scheduler.check()
        assert len(self.scheduler) == len(self.plain.waiting)

    def _place(self, item: WaitingItem) -> bool:
        start = self.arena.reserve(item.units)
        self.answers.append((item, start is not None))
        if start is None:
            return False
        self.running.append((self.now + self.chance.uniform(0.1, 3.0), start))
        return True

    @staticmethod
    def _answer_again(item: WaitingItem, answers: Iterator[tuple[WaitingItem, bool]]) -> bool:
        asked, answer = next(answers)
        assert asked == item
        return answer


@pytest.mark.parametrize("seed", range(6))
def test_ten_thousand_random_steps_choose_as_a_plain_list_does_and_leave_nobody_behind(seed: int) -> None:
    driver = Driver(seed)
    acts = [driver.arrive, driver.arrive, driver.arrive, driver.encode, driver.encode, driver.cancel, driver.move_up]
    for _ in range(10_000):
        driver.step(acts)
    for _ in range(1000):
        driver.step([driver.encode])
    assert sorted(driver.gone) == list(range(driver.arrived))
    assert len(driver.scheduler) == 0


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
