"""Desired against actual workers, on a clock of its own, with whatever may happen to workers meanwhile."""

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from triptych.cluster.reconcile import (
    LONG_SECONDS,
    LONGEST_WAIT_SECONDS,
    Action,
    Actual,
    Backoff,
    Desired,
    Drain,
    Start,
    State,
    Stop,
    reconcile,
)

NOBODY: Mapping[str, float] = {}
GROUPS = ("encode", "prefill", "decode")


def worker(worker_id: str, state: State = State.READY, **more: bool | float) -> Actual:
    return Actual(worker_id, worker_id.rpartition("-")[0], state, **more)  # type: ignore[arg-type]


def done(counts: Mapping[str, int], *actual: Actual, leaving: str = "", now: float = 0.0) -> list[Action]:
    return reconcile(Desired(counts, frozenset([leaving] if leaving else [])), actual, NOBODY, now)


def test_missing_workers_are_started_under_the_lowest_ids_that_nobody_has() -> None:
    actions = done({"encode": 3}, worker("encode-1"), worker("encode-2", State.DRAINING))
    assert actions == [Start("encode-0", "encode"), Start("encode-3", "encode")]


def test_who_only_starts_is_given_up_before_a_ready_one_drains() -> None:
    actions = done({"encode": 1}, worker("encode-0", State.STARTING), worker("encode-1"), worker("encode-2"))
    assert actions == [Stop("encode-0"), Drain("encode-2")]


def test_nobody_is_ended_before_those_that_were_found_have_said_what_they_do() -> None:
    found = [worker(f"encode-{index}", State.STARTING, is_known=False) for index in range(3)]
    assert done({"encode": 2}, *found) == [], "one that drains already may be among them"
    assert done({"encode": 2}, worker("encode-0"), *found[1:]) == []
    assert done({"encode": 2}, *found[:2], worker("encode-2.2", State.STARTING, is_known=False)) == []
    assert done({"encode": 2}, worker("encode-0"), worker("encode-1"), worker("encode-2", State.DRAINING)) == []


def test_the_last_ready_one_is_kept_until_another_is_ready() -> None:
    assert done({"encode": 1}, worker("encode-0", State.STARTING), worker("encode-1"), leaving="encode-1") == []
    assert done({"encode": 1}, worker("encode-0"), worker("encode-1"), leaving="encode-1") == [Drain("encode-1")]


def test_who_was_chosen_for_another_role_goes_first() -> None:
    assert done({"decode": 1}, worker("decode-0"), worker("decode-1"), leaving="decode-0") == [Drain("decode-0")]
    assert done({"decode": 2}, worker("decode-0"), worker("decode-1"), leaving="decode-0") == []


def test_one_that_drains_is_stopped_once_it_is_empty_or_has_taken_too_long() -> None:
    busy, empty = worker("encode-1", State.DRAINING, gives_up_at=9.0), worker("encode-1", State.DRAINING, is_empty=True)
    assert done({"encode": 1}, worker("encode-0"), busy) == []
    assert done({"encode": 1}, worker("encode-0"), busy, now=9.0) == [Stop("encode-1")]
    assert done({"encode": 1}, worker("encode-0"), empty) == [Stop("encode-1")]


def test_one_that_has_failed_is_started_again_at_its_time() -> None:
    desired = Desired({"encode": 2})
    assert reconcile(desired, [], {"encode-1": 5.0}, 4.9) == [Start("encode-0", "encode")]
    assert reconcile(desired, [worker("encode-0")], {"encode-1": 5.0}, 5.0) == [Start("encode-1", "encode")]


def test_the_first_failure_costs_no_time_and_each_further_one_twice_as_much() -> None:
    backoff = Backoff()
    waits = [backoff.failed("encode-0", 0.0, ready_seconds=0.0) for _ in range(9)]
    assert waits == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS]
    assert backoff.failures["encode-0"] == 9
    assert backoff.failed("encode-0", 100.0, ready_seconds=LONG_SECONDS) == 0.0
    assert backoff.failures["encode-0"] == 1


class World:
    """Workers to whom anything may happen, and whoever reconciles them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.counts = {group: self.random.randint(1, 3) for group in GROUPS}
        self.leaving: set[str] = set()
        self.workers: dict[str, State] = {}
        self.empty: set[str] = set()
        self.backoff = Backoff()

    def act(self) -> list[Action]:
        actual = [worker(name, state, is_empty=name in self.empty) for name, state in self.workers.items()]
        desired = Desired(dict(self.counts), frozenset(self.leaving))
        actions = reconcile(desired, actual, self.backoff.not_before, self.now)
        assert len(actions) == len({action.worker_id for action in actions}), "one thing at a time for each"
        for action in actions:
            self._carry_out(action)
        return actions

    def happen(self, *, failures: bool) -> None:
        """Something, to somebody."""
        self.now += self.random.choice((0.1, 1.0, 20.0))
        if not self.workers:
            return
        name = self.random.choice(sorted(self.workers))
        state = self.workers[name]
        if failures and self.random.random() < 0.3:
            self._gone(name)
            self.backoff.failed(name, self.now, self.random.choice((0.0, 60.0)))
        elif state is State.STARTING:
            self.workers[name] = State.READY
        elif state is State.DRAINING:
            self.empty.add(name)
        elif state is State.STOPPING:
            self._gone(name)

    def wish(self) -> None:
        group = self.random.choice(GROUPS)
        self.counts[group] = self.random.randint(1, 4)
        ready = [name for name, state in self.workers.items() if state is State.READY]
        if ready and self.random.random() < 0.5:
            chosen = self.random.choice(sorted(ready))
            group = chosen.rpartition("-")[0]
            if self.counts[group] > 1:
                self.counts[group] -= 1
                self.counts[self.random.choice(GROUPS)] += 1
                self.leaving.add(chosen)

    def count(self, *states: State) -> Counter[str]:
        return Counter(name.rpartition("-")[0] for name, state in self.workers.items() if state in states)

    def _carry_out(self, action: Action) -> None:
        name = action.worker_id
        if isinstance(action, Start):
            assert name not in self.workers, "an id names one worker"
            assert self.now >= self.backoff.not_before.get(name, 0.0), "it failed a moment ago"
            self.workers[name] = State.STARTING
        elif isinstance(action, Drain):
            assert self.workers[name] is State.READY
            self.workers[name] = State.DRAINING
            assert self.count(State.READY)[name.rpartition("-")[0]] >= 1, "its group is left without a ready worker"
        else:
            assert self.workers[name] is State.STARTING or name in self.empty, "it had work"
            self.workers[name] = State.STOPPING
            self.backoff.forget(name)

    def _gone(self, name: str) -> None:
        del self.workers[name]
        self.empty.discard(name)
        self.leaving.discard(name)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_nobody_loses_work_and_in_the_end_there_is_what_was_wished_for(seed: int) -> None:
    world = World(seed)
    for _ in range(120):
        if world.random.random() < 0.1:
            world.wish()
        world.happen(failures=True)
        world.act()
        live, ready = world.count(State.STARTING, State.READY), world.count(State.READY)
        # One too many: the last ready one, which leaves once the one that starts is ready.
        assert all(live[group] <= max(world.counts[group], ready[group]) + (ready[group] == 1) for group in GROUPS)
    for _ in range(2000):
        world.happen(failures=False)
        world.act()
        if world.count(*State) == world.count(State.READY) == Counter(world.counts):
            break
    assert world.count(State.READY) == Counter(world.counts)
    assert world.act() == [], "and nothing more is done"
