"""Waiting items in columns, beside the same rules by plain counting."""

import random
from collections.abc import Callable, Iterator

import pytest

from triptych.engine.encoder_scheduler import Batch, BatchBudget, EncoderScheduler, WaitingItem
from triptych.engine.extents import Extents

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
        self.gone += [item.arrival for item in batch.items]

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
