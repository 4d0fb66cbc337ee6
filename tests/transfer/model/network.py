"""Calls and streams between simulated processes, with everything a network can do to them."""

import inspect
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from tests.transfer.model.clock import Timeline
from tests.transfer.model.faults import Faults
from tests.transfer.model.process import Process
from triptych.errors import DeadlineExceeded, TriptychError, WorkerLost, WrongIncarnation
from triptych.journey import Endpoint

Answer = Callable[[Any], None]  # gets the reply, or a TriptychError
OnLost = Callable[[Endpoint], None]

LOST_NOTICE_SECONDS = 0.3  # until a broken connection is noticed by those who hold it


class Network:
    """Who answers at which address, and how long messages to him take."""

    def __init__(self, timeline: Timeline, random: Random, faults: Faults) -> None:
        self.checks_incarnation = True
        self._timeline = timeline
        self._random = random
        self._faults = faults
        self._isolated_until: dict[str, float] = {}  # by address
        self._living: dict[str, tuple[Process, Any]] = {}  # by address: the process, the object that answers there

    def listen(self, process: Process, service: Any) -> None:
        self._living[process.endpoint.address] = (process, service)

    def at(self, endpoint: Endpoint) -> Any | None:
        """The service of this very incarnation while it lives: for what goes past the network, as reads of memory."""
        process, service = self._living.get(endpoint.address, (None, None))
        return service if process is not None and process.alive and process.endpoint == endpoint else None

    def services(self) -> list[Any]:
        return [service for process, service in self._living.values() if process.alive]

    def call(
        self,
        source: Process,
        target: Endpoint,
        step: str,
        method: str,
        *args: Any,
        answer: Answer | None = None,
        seconds: float = 2.0,
    ) -> None:
        """Call `method` of the service at target; `answer` gets its reply, its error, or that there was none, once.

        The method gets a function to reply by as its last argument when it has a parameter of that name.
        """
        done = False

        def settle(outcome: Any) -> None:
            nonlocal done
            if not done:
                done = True
                timer.cancel()
                if answer is not None:
                    answer(outcome)

        def reply(outcome: Any) -> None:
            ends = (target, source.endpoint)
            self._carry(step + "-reply", ends, lambda: source.do(step + "-reply", settle, outcome))

        timer = source.later(seconds, step + "-timeout", settle, DeadlineExceeded(f"{step} is overdue"))
        self._carry(step, (source.endpoint, target), lambda: self._arrive(target, step, method, args, reply))

    def tell(self, source: Process, target: Endpoint, step: str, method: str, *args: Any) -> None:
        """One message of a stream that is watched: what is dropped is sent again until it arrives."""
        arrive = partial(self._arrive, target, step, method, args, _nobody)
        if self._faults.strikes("drop", step) or self._is_cut(source.endpoint, target):
            seconds = max(0.0, self._cut_until(source.endpoint, target) - self._timeline.now)
            self._timeline.after(seconds + self._random.uniform(0.2, 1.0), arrive)
        elif self._faults.strikes("straggle", step):
            self._timeline.after(self._faults.delay_seconds(), arrive)
        else:
            self._carry(step, None, arrive)

    def isolate(self, endpoint: Endpoint, seconds: float) -> None:
        """Nothing comes to or from this address for so long."""
        self._isolated_until[endpoint.address] = self._timeline.now + seconds

    def _cut_until(self, *ends: Endpoint) -> float:
        return max(self._isolated_until.get(end.address, 0.0) for end in ends)

    def _is_cut(self, *ends: Endpoint) -> bool:
        return bool(self._isolated_until) and self._cut_until(*ends) > self._timeline.now

    def _carry(self, step: str, ends: tuple[Endpoint, Endpoint] | None, arrive: Callable[[], None]) -> None:
        """ends: of a call, whose messages may be lost"""
        if ends is not None and (self._faults.strikes("drop", step) or self._is_cut(*ends)):
            return
        seconds = self._random.uniform(0.0005, 0.01)
        if self._faults.strikes("delay", step):
            seconds = self._faults.delay_seconds()
        elif self._faults.strikes("reorder", step):
            seconds = self._random.uniform(0.01, 0.15)
        self._timeline.after(seconds, arrive)
        if self._faults.strikes("duplicate", step):
            self._timeline.after(self._random.uniform(0.0005, 1.0), arrive)

    def _arrive(self, target: Endpoint, step: str, method: str, args: tuple[Any, ...], reply: Answer) -> None:
        process, service = self._living.get(target.address, (None, None))
        if process is None or not process.alive:
            reply(WorkerLost(f"nobody answers at {target.address}"))
        elif process.endpoint != target and self.checks_incarnation:
            reply(WrongIncarnation(f"{target.address} is {process.endpoint.incarnation} now"))
        else:
            process.do(step, _serve, service, method, args, reply)

    def died(self, process: Process) -> None:
        """Those who hold a connection notice, by and by."""
        for other, service in list(self._living.values()):
            if other.alive and other is not process:
                seconds = self._random.uniform(0.001, LOST_NOTICE_SECONDS)
                other.later(seconds, "lost", service.lost, process.endpoint)


def _serve(service: Any, method: str, args: tuple[Any, ...], reply: Answer) -> None:
    serve = getattr(service, method)
    try:
        if _replies_itself(serve):
            serve(*args, reply)
        else:
            reply(serve(*args))
    except TriptychError as error:
        reply(error)


_REPLIES: dict[Any, bool] = {}


def _replies_itself(serve: Any) -> bool:
    function = serve.__func__
    found = _REPLIES.get(function)
    if found is None:
        found = _REPLIES[function] = "reply" in inspect.signature(serve).parameters
    return found


def _nobody(outcome: Any) -> None:
    """A stream's message has no reply."""
