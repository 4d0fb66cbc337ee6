"""Keeps as many workers as are wanted: carries out, as Ray actors, what cluster/reconcile.py says."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from triptych.cluster.groups import counts_wished, first_counts, group_meant, groups_of
from triptych.cluster.hiring import Hiring
from triptych.cluster.member import Member, reason_of
from triptych.cluster.names import group_in, set_in
from triptych.cluster.pacing import Pace
from triptych.cluster.reconcile import Action, Backoff, Desired, Drain, Start, State, reconcile
from triptych.cluster.set_keeper import SetKeeper
from triptych.cluster.sets import Sets, first_set
from triptych.cluster.view import View, of_missing
from triptych.config import Settings
from triptych.errors import InvalidRequest

log = logging.getLogger(__name__)

_NOBODY: Mapping[str, Any] = {}
_LOOK_SECONDS = 0.1
_PING_SECONDS = 0.25
_STOP_SECONDS = 5.0
_LOST_SECONDS = 15.0  # without a word from Ray
_STOOD_SECONDS = 10.0  # between two looks: this process stood still, or Ray kept it waiting
_NEWS_SECONDS = 10.0  # between two words about what still loads
_LOUD_FAILURES = 3  # in a row, from which on the wait before the next try is told
_KEPT_NEWS = 64


class Crew:
    """The workers of one cluster, from `start` to `stop`. Any thread may call; only `stop` takes its time."""

    def __init__(
        self,
        settings: Settings,
        hiring: Hiring,
        counts: Mapping[str, int] | None = None,
        here: Mapping[str, Any] = _NOBODY,
        wanted: Callable[[Mapping[str, int], Sets], None] = lambda counts, sets: None,
        sets: Sets | None = None,
    ) -> None:
        """counts, sets: to begin with, where not those of the settings; here: workers that there are already, by id

        wanted: told of every change of either, the latest of both, by one thread at a time; it may wait for Ray
        """
        self._settings = settings
        self._hiring = hiring
        self._roles = groups_of(settings.serve.topology)
        self._lock = threading.Lock()
        self._counts = dict(counts or first_counts(settings.serve))
        self._wanted, self._keeping = wanted, threading.Lock()
        self.keeper = SetKeeper(
            *(sets or first_set(settings.serve.model), self._drain_seconds()),
            room=lambda: hiring.require_room(self._counts),
            kept=self._keep,
        )
        self.reload, self.back, self.hear = self.keeper.reload, self.keeper.back, self.keeper.hear
        self._leaving: frozenset[str] = frozenset()
        now = time.monotonic()
        self._members = {  # of the thread alone
            worker_id: Member(worker_id, group_in(worker_id), actor, now, is_known=False)
            for worker_id, actor in here.items()
        }
        self._backoff, self._pace = Backoff(), Pace(now)
        self._condemned: dict[tuple[str, int], str] = {}  # why, by id and incarnation
        self._failures: dict[str, str] = {}
        self._news: deque[tuple[int, str]] = deque(maxlen=_KEPT_NEWS)
        self._told_at, self._looked_at = 0.0, now
        self._view = View(settings.serve.topology, dict(self._counts))
        self._wake, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="crew", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def view(self) -> View:
        return replace(self._view, **self.keeper.told())

    def scale(self, wish: Mapping[str, int]) -> None:
        """From now on so many workers of each group. Raises InvalidRequest for what cannot be."""
        serve = self._settings.serve
        with self._lock:
            counts = counts_wished(serve.topology, self._counts, wish, serve.max_workers)
            changed = {group for group, count in counts.items() if count != self._counts[group]}
            # Who was chosen to leave was chosen for the number before.
            self._leaving = frozenset(each for each in self._leaving if group_in(each) not in changed)
            self._want(counts)
        self._keep()

    def switch(self, worker_id: str, role: str) -> None:
        """One worker fewer in this one's group, which is this one; one more in the role's. Raises InvalidRequest."""
        serve = self._settings.serve
        target = group_meant(serve.topology, role, param="role")
        group = self._group_of(worker_id)
        with self._lock:
            if worker_id in self._leaving:
                raise InvalidRequest(f"{worker_id} is to leave {group} already", param="worker")
            if group == target:
                raise InvalidRequest(f"{worker_id} is of {target} already", param="worker")
            if self._counts[group] < 2:
                raise InvalidRequest(
                    f"{worker_id} is all that there will be of {group}; first add another: triptych scale {group}=2",
                    param="worker",
                )
            changed = {group: self._counts[group] - 1, target: self._counts[target] + 1}
            counts = counts_wished(serve.topology, self._counts, changed, serve.max_workers)
            self._leaving |= {worker_id}
            self._want(counts)
        self._keep()

    def replace(self, worker_id: str, incarnation: int, reason: str) -> None:
        """Ends a worker that answers and is of no use, so that another takes its place. Of one that is gone, nothing.

        reason: why, for whoever watches
        """
        with self._lock:
            self._condemned[worker_id, incarnation] = reason
        self._wake.set()

    def stop(self, may_end: bool = True) -> None:
        """Ends all workers, whatever they have, as this crew is nobody else's. Returns when they have gone."""
        self._done.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(2 * _STOP_SECONDS)
        members = list(self._members.values())
        # One that waits for its place would not hear it.
        stopping = [member.actor.stop.remote() for member in members if member.address or member.load.is_there]
        if stopping:
            ray.wait(stopping, num_returns=len(stopping), timeout=_STOP_SECONDS)
        for member in members:
            member.end()
        self._hiring.close()

    def abandon(self) -> None:
        """Ray has gone, and the workers with it."""
        self._done.set()
        self._wake.set()

    def _want(self, counts: dict[str, int]) -> None:
        """Under the lock. Whoever looks from now on sees that it is not there yet."""
        self._counts = counts
        self._view = replace(self._view, counts=dict(counts))
        self._wake.set()

    def _keep(self) -> None:
        """Behind all other locks: nobody who only wants to know how things stand waits for this."""
        with self._keeping:
            self._wanted(self._counts, self.keeper.sets)

    def _group_of(self, worker_id: str) -> str:
        """Raises InvalidRequest for a worker that is not there, or goes already."""
        for worker in self._view.workers:
            if worker.worker_id == worker_id:
                if worker.state in (State.DRAINING, State.STOPPING):
                    raise InvalidRequest(f"{worker_id} is {worker.state} already", param="worker")
                return worker.group
        names = ", ".join(worker.worker_id for worker in self._view.workers)
        raise InvalidRequest(f"there is no worker {worker_id[:64]!r}; there are {names}", param="worker")

    def _run(self) -> None:
        answered_at = time.monotonic()
        pinged_at = 0.0
        while not self._done.is_set():
            now = time.monotonic()
            try:
                if now - pinged_at >= _PING_SECONDS:
                    pinged_at = now
                    for member in self._members.values():
                        member.ask()
                self._hear()
                self._look_at_sets()
                for action in self._decide():
                    self._carry_out(action)
                answered_at = now
            except RayError as error:
                if now - answered_at > _LOST_SECONDS:
                    self._say("Ray has gone, and this server's workers with it")
                    self._publish(is_lost=True)
                    return
                log.warning("the cluster's state is unknown for now: %s", reason_of(error))
            except Exception:  # a bug of ours must not end what keeps the workers
                log.exception("keeping the workers failed")
            self._publish()
            self._wake.wait(_LOOK_SECONDS)
            self._wake.clear()

    def _hear(self) -> None:
        open_questions = {member.question: member for member in self._members.values() if member.question is not None}
        if open_questions:
            answered, _ = ray.wait(list(open_questions), num_returns=len(open_questions), timeout=0)
            for question in answered:
                member, before = open_questions[question], open_questions[question].state
                member.hear(time.monotonic())
                if before is not State.DRAINING and member.state is State.DRAINING:  # when we came to know it
                    member.gives_up_at = time.monotonic() + self._drain_seconds()
                    self._say(f"{member.worker_id} drains")
                elif before is State.STARTING and member.state is State.READY:
                    self._failures.pop(member.worker_id, None)
                    memory = f": {member.address.memory}" if member.address and member.address.memory else ""
                    self._say(f"{member.worker_id} ready{memory}")
        with self._lock:
            condemned, self._condemned = self._condemned, {}
        now = time.monotonic()
        stood_still, self._looked_at = now - self._looked_at > _STOOD_SECONDS, now
        for member in list(self._members.values()):
            if stood_still:
                member.excuse(now)
            member.condemn(condemned)
            if member.state is State.STOPPING and now >= member.stops_at and not member.is_gone:
                member.end()
            member.look_alive(now)
            if member.is_gone:
                self._bury(member)

    def _bury(self, member: Member) -> None:
        worker_id, now = member.worker_id, time.monotonic()
        del self._members[worker_id]
        self._hiring.release(worker_id)
        with self._lock:
            self._leaving -= {worker_id}
        if member.state in (State.DRAINING, State.STOPPING) or not member.failure:
            self._failures.pop(worker_id, None)
            self._backoff.forget(worker_id)
            self._say(f"{worker_id} has ended")
            return
        waits = self._backoff.failed(worker_id, now, member.useful_seconds(now))
        failures = self._backoff.failures[worker_id]
        self._failures[worker_id] = member.failure
        text = f"{worker_id} is down: {member.failure}"
        if failures >= _LOUD_FAILURES:
            text += f"; {failures} times in a row now, the next try is in {waits:g} s"
        self._say(text)

    def _look_at_sets(self) -> None:
        now = time.monotonic()
        workers = [member.view(now) for member in self._members.values()]
        for line in self.keeper.look(self._counts, workers, self._failures):
            self._say(line)
        self._failures = of_missing(self._failures, workers, self._counts, self.keeper.sets.wanted)

    def _decide(self) -> list[Action]:
        now = time.monotonic()
        with self._lock:
            desired = Desired(dict(self._counts), self._leaving, self.keeper.sets.wanted)
        actual = [member.actual(now) for member in self._members.values()]
        return reconcile(desired, actual, self._backoff.not_before, now)

    def _carry_out(self, action: Action) -> None:
        now = time.monotonic()
        if isinstance(action, Start):
            if not self._pace.take(now):
                return  # the next look asks again
            model = self.keeper.sets.model_of(set_in(action.worker_id))
            actor = self._hiring.hire(action.worker_id, self._roles[action.group], model)
            member = Member(action.worker_id, action.group, actor, now)
            self._members[action.worker_id] = member
        else:
            member = self._members[action.worker_id]
            if isinstance(action, Drain):
                member.drain(now + self._drain_seconds())
                self._say(f"{member.worker_id} drains")
            elif member.state is State.STARTING:  # nothing to finish, and its constructor would keep a question waiting
                member.state = State.STOPPING
                member.end()
                return
            else:
                if not member.actual(now).is_empty:
                    self._say(f"{member.worker_id} has taken too long to finish; its requests go on elsewhere")
                member.stop(now + _STOP_SECONDS)
        member.ask()

    def _drain_seconds(self) -> float:
        return self._settings.serve.drain_seconds or self._settings.router.request_timeout_seconds

    def _publish(self, *, is_lost: bool = False) -> None:
        now = time.monotonic()
        loading = [member for member in self._members.values() if member.state is State.STARTING]
        if loading and now - max(self._told_at, min(member.began_at for member in loading)) >= _NEWS_SECONDS:
            self._told_at = now
            waited = max(now - member.began_at for member in loading)
            self._say(f"loading {', '.join(member.worker_id for member in loading)} ({waited:.0f} s)")
        workers = tuple(member.view(now) for member in self._members.values())
        failures, news = dict(self._failures), tuple(self._news)
        with self._lock:
            self._view = View(self._settings.serve.topology, dict(self._counts), workers, failures, news, is_lost)

    def _say(self, text: str) -> None:
        number = self._news[-1][0] + 1 if self._news else 0
        self._news.append((number, text))
