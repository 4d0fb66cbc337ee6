"""Keeps the sets of workers: what operators wish for, what routers report, and what follows from both."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from triptych.cluster.names import set_in
from triptych.cluster.reconcile import State
from triptych.cluster.sets import (
    Facts,
    Phase,
    Report,
    Sets,
    changes,
    idle_sets,
    proceeded,
    proven_sets,
    reloaded,
    serving_again,
    taken_back,
)
from triptych.cluster.view import SetView, WorkerView
from triptych.errors import InvalidRequest

_REPORT_SECONDS = 10.0  # after which a server that says nothing has gone, and its routers with it


class SetKeeper:
    """Any thread may call. Times are on the monotonic clock."""

    def __init__(self, sets: Sets, drain_seconds: float, *, room: Callable[[], None], kept: Callable[[], None]) -> None:
        """drain_seconds: that requests may take to end with a set that finishes

        room: raises InvalidRequest where no other set would fit; kept: called behind every change
        """
        self._room = room
        self._sets = sets
        self._told = sets  # what `look` has told of
        self._drain_seconds = drain_seconds
        self._kept = kept
        self._reports: dict[str, tuple[float, Report]] = {}  # by server, and when
        self._lock = threading.Lock()

    @property
    def sets(self) -> Sets:
        return self._sets

    def expect(self, server: str) -> None:
        """There is a server; until it reports nothing is known of its routers."""
        with self._lock:
            _, report = self._reports.get(server, (0.0, Report()))
            self._reports[server] = time.monotonic(), report

    def hear(self, report: Report, server: str = "") -> None:
        """What a server's routers say."""
        with self._lock:
            self._reports[server] = time.monotonic(), report

    def forget(self, server: str) -> None:
        with self._lock:
            self._reports.pop(server, None)

    def reload(self, model: str, seconds: float, keep_seconds: float) -> None:
        """Brings a set with this model up; where one that finishes has it, and so is whole, that serves again.

        seconds: after which it is given up; keep_seconds: for which the one before is kept
        Raises InvalidRequest for what cannot be.
        """
        with self._changing():
            now = time.monotonic()
            kept_until = now + keep_seconds
            found = serving_again(self._sets, model, max(now + self._drain_seconds, kept_until), kept_until)
            if found is not None and not self._sets.in_phase(Phase.COMING):
                self._sets = found
                return
        self._bring_up(model, seconds, keep_seconds)

    def back(self, seconds: float) -> None:
        """Gives up what comes; else the model before serves again, in its old set or a new one. Raises InvalidRequest.

        seconds: after which a new set is given up
        """
        with self._changing():
            found = taken_back(self._sets, time.monotonic() + self._drain_seconds)
            if found is not None:
                self._sets = found
                return
        if not self._sets.previous:
            raise InvalidRequest("there is nothing to go back to: no other model has been served")
        self._bring_up(self._sets.previous, seconds, 0.0)

    def _bring_up(self, model: str, seconds: float, keep_seconds: float) -> None:
        reloaded(self._sets, model, 0.0)  # raises where none may come, before anybody looks for room
        self._room()  # without the lock: it asks Ray, which may take its time
        with self._changing():
            self._sets = reloaded(self._sets, model, time.monotonic() + seconds, keep_seconds)

    def look(
        self, counts: Mapping[str, int], workers: Sequence[WorkerView], failures: Mapping[str, str]
    ) -> Sequence[str]:
        """Goes on where that is possible; what has changed since the last look, in lines.

        counts: workers wanted, by group; failures: why workers that are not there have failed, by id
        """
        now = time.monotonic()
        with self._changing():
            self._reports = {name: told for name, told in self._reports.items() if now - told[0] < _REPORT_SECONDS}
            facts = self._facts(counts, workers, failures)
            self._sets = proceeded(self._sets, facts, now, self._drain_seconds)
            before, self._told = self._told, self._sets
            return changes(before, self._sets)

    def told(self) -> dict[str, Any]:
        """What a View has of it, by name."""
        now = time.monotonic()
        with self._lock:
            reports = [report for _, report in self._reports.values()]
            views = tuple(
                SetView(
                    *(each.number, each.model, each.phase),
                    sum(report.requests.get(each.number, 0) for report in reports),
                    max(0.0, each.kept_until - now) if each.phase is Phase.FINISHING else 0.0,
                )
                for each in self._sets.each
            )
            return {"sets": views, "trouble": self._sets.trouble, "turn": self._sets.turn}

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """The lock. Whoever keeps the sets is told once it is free again: that may take as long as Ray is away."""
        with self._lock:
            before = self._sets
            yield
            is_changed = self._sets != before
        if is_changed:
            self._kept()

    def _facts(self, counts: Mapping[str, int], workers: Sequence[WorkerView], failures: Mapping[str, str]) -> Facts:
        sets, reports = self._sets, [report for _, report in self._reports.values()]
        ready: dict[int, dict[str, Collection[str]]] = {}
        for worker in workers:
            if worker.state is State.READY:
                of_set = ready.setdefault(set_in(worker.worker_id), {})
                of_set[worker.group] = [*of_set.get(worker.group, ()), worker.worker_id]
        trouble = {number: text for report in reports for number, text in report.trouble.items()}
        trouble |= {set_in(name): f"{name}: {reason}" for name, reason in failures.items()}
        here = {set_in(worker.worker_id) for worker in workers}
        return Facts(
            proven=proven_sets(counts, ready, reports),
            idle=idle_sets(sets, reports),
            trouble=trouble,
            empty={each.number for each in sets.each} - here,
            waits={each.number: _waits(each.number, workers, reports) for each in sets.in_phase(Phase.COMING)},
        )


def _waits(number: int, workers: Sequence[WorkerView], reports: Collection[Report]) -> str:
    """For what a set that comes is waiting."""
    of_set = [worker for worker in workers if set_in(worker.worker_id) == number]
    missing = [f"{each.worker_id} {each.state} {each.note}".strip() for each in of_set if each.state is not State.READY]
    missing += [
        f"{each.worker_id} not proven by every router yet"
        for each in of_set
        if each.state is State.READY and any(each.worker_id not in report.ready.get(number, ()) for report in reports)
    ]
    return ", ".join(missing) or "none of its workers has started"
