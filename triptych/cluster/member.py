"""One worker as its keeper knows it: the actor, its state, and the one question to it that is open."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

from triptych.cluster import progress
from triptych.cluster.actors import WorkerAddress
from triptych.cluster.progress import Progress, Watch
from triptych.cluster.raylet import has_process
from triptych.cluster.reconcile import Actual, State
from triptych.cluster.view import WorkerView

log = logging.getLogger(__name__)

_SILENT_SECONDS = 5.0  # a ready worker's actor that has not answered for so long gets nothing new
STILL_SECONDS = 60.0  # after which it is taken for hung, and ended
_LOOK_SECONDS = 1.0  # between two looks whether one that waits for its place has got it
_SETTLE_SECONDS = 0.5  # that a worker has held nothing before it is stopped: its last words are with the routers then


@dataclass(slots=True)
class Member:
    """Belongs to the crew's thread. Nothing here waits for an actor."""

    worker_id: str
    group: str
    actor: Any
    began_at: float
    is_known: bool = True  # False of one that was found, until it has said what it does
    state: State = State.STARTING
    address: WorkerAddress | None = None
    ready_at: float = inf
    gives_up_at: float = inf
    failure: str = ""  # why it is gone; empty while it is there, and where it was stopped
    is_gone: bool = False
    question: Any = None
    heard_at: float = 0.0
    empty_since: float = inf
    stops_at: float = inf
    load: Watch = field(default_factory=Watch)
    trouble: str = ""  # that it has told of
    _looked_at: float = 0.0

    def ask(self) -> None:
        """What its state wants to know, unless something is still open."""
        if self.question is not None:
            return
        method = {State.DRAINING: "drain", State.STOPPING: "stop"}.get(self.state, "address")
        self.question = getattr(self.actor, method).remote()

    def hear(self, now: float) -> None:
        """Takes the answer, which is there."""
        question, self.question = self.question, None
        try:
            answer = ray.get(question)
        except ActorUnavailableError:
            return  # for now; it will answer, or Ray says that it has died
        except RayActorError as error:
            self.is_gone, self.failure = True, "" if self.state is State.STOPPING else self.trouble or reason_of(error)
            return
        except RayTaskError as error:
            if self.state is State.STARTING:
                self.fail(reason_of(error))
                return
            log.warning("%s: %s", self.worker_id, reason_of(error))
            answer = None
        self.heard_at, self.is_known = now, True
        if isinstance(answer, Progress):
            self.load.heard(answer, now)
        elif isinstance(answer, WorkerAddress):
            self.trouble = answer.trouble
        if self.state is State.STARTING and isinstance(answer, WorkerAddress):
            self.state = State.DRAINING if answer.is_draining else State.READY
            self.address, self.ready_at = answer, now
        elif self.state is State.READY and isinstance(answer, WorkerAddress) and answer.is_draining:
            self.state = State.DRAINING  # somebody has sent its process a SIGTERM
        elif self.state is State.DRAINING:
            self.empty_since = min(self.empty_since, now) if answer is True else inf
        elif self.state is State.STOPPING:
            self.stops_at = now

    def drain(self, gives_up_at: float) -> None:
        self.state, self.gives_up_at, self.question = State.DRAINING, gives_up_at, None

    def stop(self, stops_at: float) -> None:
        """stops_at: from when on it is ended by force"""
        self.state, self.stops_at, self.question = State.STOPPING, stops_at, None

    def end(self) -> None:
        ray.kill(self.actor, no_restart=True)
        self.is_gone = True

    def fail(self, reason: str) -> None:
        """Ends it, so that another takes its place."""
        self.failure = reason
        self.end()

    def excuse(self, now: float) -> None:
        """Whoever asks it stood still: that it was not heard meanwhile says nothing about it."""
        self.heard_at = max(self.heard_at, now)
        self.load.excuse(now)

    def look_alive(self, now: float) -> None:
        """Ends one whose process stands still: it would keep its place for ever, and Ray takes it for alive."""
        if self.is_gone:
            return
        if self.state is State.READY and now - self.heard_at > STILL_SECONDS:
            self.fail(f"it has not answered for {STILL_SECONDS:g} s")
        elif self.state is State.STARTING:
            if not self.load.is_there and now - self._looked_at >= _LOOK_SECONDS:
                self._looked_at = now
                if has_process(self.actor):
                    self.load.began(now)
            if self.load.silent_seconds(now) > progress.STALL_SECONDS:
                where = f" where it {self.load.stage}" if self.load.stage else ""
                self.fail(f"its start has not gone on for {progress.STALL_SECONDS:g} s{where}")

    def condemn(self, condemned: Mapping[tuple[str, int], str]) -> None:
        """Ends it where it is one of these, by id and incarnation."""
        if self.state is State.READY and self.address is not None and not self.is_gone:
            reason = condemned.get((self.worker_id, self.address.endpoint.incarnation))
            if reason is not None:
                self.ready_at = inf
                self.fail(reason)

    def useful_seconds(self, now: float) -> float:
        """For which it was ready; 0 for one that never was, or was refused."""
        return max(0.0, now - self.ready_at)

    def actual(self, now: float) -> Actual:
        is_empty = now - self.empty_since >= _SETTLE_SECONDS
        return Actual(self.worker_id, self.group, self.state, self.is_known, is_empty, self.gives_up_at)

    def view(self, now: float) -> WorkerView:
        silent = self.state is State.READY and now - self.heard_at > _SILENT_SECONDS
        listed = self.address if self.state is State.READY and not silent else None
        note = "its actor does not answer" if silent else ""
        if self.state is State.STARTING:
            stage = self.load.stage or ("begins" if self.load.is_there else "waits for its place")
            note = f"{stage}, for {now - self.began_at:.0f} s"
        return WorkerView(self.worker_id, self.group, self.state, note, listed)


def reason_of(error: BaseException) -> str:
    """The innermost message of a Ray error, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).removeprefix("triptych.errors.ConfigError: ")
