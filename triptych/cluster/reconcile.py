"""What is to be done so that the workers that there are become those that are wanted. Pure: no Ray, no clock.

A worker's life: it starts, is ready, drains, is stopped; or it is suddenly gone. Whoever carries out what `reconcile`
says asks again after each change, and a moment later where nothing has changed.
"""

import enum
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf

from triptych.cluster.names import FIRST_SET, index_in, set_in, worker_name


class State(enum.StrEnum):
    STARTING = "starting"  # waits for its place, or loads
    READY = "ready"
    DRAINING = "draining"  # takes nothing new, finishes what it has
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Actual:
    """A worker that there is."""

    worker_id: str
    group: str
    state: State
    is_known: bool = True  # else it was found, and has not said yet what it does
    is_empty: bool = False  # of one that drains: it holds nothing any more
    gives_up_at: float = inf  # of one that drains: the moment from which it is stopped whatever it holds

    @property
    def number(self) -> int:
        """Of its set."""
        return set_in(self.worker_id)


@dataclass(frozen=True, slots=True)
class Desired:
    """counts: workers of each group, in each set. sets: by number; who is of another one goes.

    leaving: who goes first where there are too many, as switches of roles have it
    """

    counts: Mapping[str, int]
    leaving: frozenset[str] = frozenset()
    sets: frozenset[int] = frozenset({FIRST_SET})


@dataclass(frozen=True, slots=True)
class Start:
    worker_id: str
    group: str


@dataclass(frozen=True, slots=True)
class Drain:
    worker_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    worker_id: str


Action = Start | Drain | Stop


def reconcile(desired: Desired, actual: Sequence[Actual], not_before: Mapping[str, float], now: float) -> list[Action]:
    """What is to be done at once.

    not_before: when a worker that has failed may be started again, by its id
    now: on the clock of `not_before` and `gives_up_at`

    A set's group with a ready worker keeps one: the last is drained only when another is ready, or the set goes. Ids
    are used again, lowest first, once whoever had them is gone.
    """
    actions: list[Action] = [
        Stop(each.worker_id)
        for each in actual
        if each.state is State.DRAINING and (each.is_empty or now >= each.gives_up_at)
    ]
    taken = {each.worker_id for each in actual}
    there = [each for each in actual if each.state in (State.STARTING, State.READY)]
    for number, (group, count) in product(sorted(desired.sets), desired.counts.items()):
        here = [each for each in there if each.group == group and each.number == number]
        if len(here) < count:
            names = (worker_name(group, index, number) for index in itertools.count())
            actions += _starts(group, names, count - len(here), taken, not_before, now)
        elif len(here) > count:
            actions += _ends(here, len(here) - count, desired.leaving)
    return actions + [_end(each) for each in there if each.number not in desired.sets and each.is_known]


def _starts(
    group: str,
    names: Iterator[str],
    missing: int,
    taken: Collection[str],
    not_before: Mapping[str, float],
    now: float,
) -> list[Action]:
    free = itertools.islice((name for name in names if name not in taken), missing)
    return [Start(name, group) for name in free if now >= not_before.get(name, -inf)]


def _end(each: Actual) -> Action:
    """One that only starts has nothing to lose."""
    return Stop(each.worker_id) if each.state is State.STARTING else Drain(each.worker_id)


def _ends(here: Sequence[Actual], number: int, leaving: Collection[str]) -> list[Action]:
    """One that only starts has nothing to lose; else who was chosen, else the latest. Nobody while one is not known."""
    if not all(each.is_known for each in here):
        return []
    ready = [each for each in here if each.state is State.READY]
    order = sorted(
        here, key=lambda each: (each.worker_id not in leaving, each.state is State.READY, -index_in(each.worker_id))
    )
    actions: list[Action] = []
    may_drain = len(ready) - 1
    for each in order[:number]:
        if each.state is State.STARTING:
            actions.append(Stop(each.worker_id))
        elif may_drain > 0:
            may_drain -= 1
            actions.append(Drain(each.worker_id))
    return actions


FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 30.0
LONG_SECONDS = 10.0  # one that was ready for so long has not died of how it was started


@dataclass(slots=True)
class Backoff:
    """When workers that fail may be started again: the first time at once, then after twice as long each time."""

    not_before: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)  # in a row

    def failed(self, worker_id: str, now: float, ready_seconds: float) -> float:
        """Seconds until it may be started again. ready_seconds: how long it was ready, 0 if it never was."""
        before = 0 if ready_seconds >= LONG_SECONDS else self.failures.get(worker_id, 0)
        self.failures[worker_id] = before + 1
        waits = min(FIRST_WAIT_SECONDS * 2.0 ** min(before - 1, 16), LONGEST_WAIT_SECONDS) if before else 0.0
        self.not_before[worker_id] = now + waits
        return waits

    def forget(self, worker_id: str) -> None:
        """It was stopped on purpose."""
        self.not_before.pop(worker_id, None)
        self.failures.pop(worker_id, None)
