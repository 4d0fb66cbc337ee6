"""Where the time of one request went, by stage: what the router measures, and what workers tell in their replies.

Clocks of different processes are never compared. A worker tells when its stages began and ended since the call had
reached it, and how long it had the call when it answered; the router knows when it sent the call and got the answer.
What the worker did not have of that time passed on the way there and back, nobody knows how much of it on which: the
worker's spans are laid in the middle, and can be wrong by half of it at most (`off_by`).
"""

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from triptych.pb import common_pb2
from triptych.stages import TIMED_STAGES

_NAMES = frozenset(stage.name for stage in TIMED_STAGES)


class Span(NamedTuple):
    """begin, end: seconds since the request came. worker: whose; empty for the router. item: -1: of all the request.

    off_by: seconds by which both may lie earlier or later, at most
    """

    stage: str
    begin: float
    end: float
    worker: str = ""
    item: int = -1
    off_by: float = 0.0


class Call(NamedTuple):
    """One call to a worker, until the answer that told of its stages. Seconds since the request came."""

    role: str
    worker: str
    begin: float
    end: float
    off_by: float


class Placed(NamedTuple):
    """A worker that was chosen, and why this one."""

    role: str
    worker: str
    why: str


class Retried(NamedTuple):
    """A stage that was tried again: when, in seconds since the request came, and behind which error."""

    stage: str
    error: str
    at: float


class Measure:
    """One stage being measured. A class: a dozen of them are made for each request, and generators cost twice that."""

    __slots__ = ("_began", "_stage", "_timeline")

    def __init__(self, timeline: "Timeline", stage: str) -> None:
        self._timeline = timeline
        self._stage = stage
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._timeline.add(self._stage, self._began, time.perf_counter())


class Timeline:
    """Of one request, from its arrival on."""

    def __init__(self, started_at: float | None = None) -> None:
        """started_at: on time.perf_counter; None: now"""
        self.started_at = time.perf_counter() if started_at is None else started_at
        self.spans: list[Span] = []
        self.calls: list[Call] = []
        self.placed: list[Placed] = []
        self.retried: list[Retried] = []
        self.first_token: float | None = None  # seconds until the router had it
        self.hosts_seconds = 0.0  # for how long it waited for the hosts of its images, all together
        self.responded: float | None = None  # and until it was on its way to the client
        self._landed: tuple[float, str] | None = None  # when, and at which worker
        self._decodes: float | None = None

    def measure(self, stage: str) -> "Measure":
        """A context: what is done within is this stage, of the router's."""
        return Measure(self, stage)

    def add(self, stage: str, began: float, ended: float) -> None:
        """began, ended: on time.perf_counter"""
        self.spans.append(Span(stage, began - self.started_at, ended - self.started_at))

    def add_told(
        self, role: str, worker: str, sent_at: float, times: Iterable[common_pb2.StageTime], since_arrival: float
    ) -> None:
        """What a worker has just told of a call. Stages that nobody here knows are left out.

        sent_at:       when the call went out, on time.perf_counter
        since_arrival: seconds for which the worker had it when it told this; 0 where it does not say
        """
        received = self.since_start()
        sent = sent_at - self.started_at
        off_by = max(0.0, received - sent - since_arrival) / 2
        self.calls.append(Call(role, worker, sent, received, off_by))
        if since_arrival > 0:
            arrived = received - off_by - since_arrival
            self.spans += [
                Span(
                    *(part.stage, arrived + part.begin, arrived + part.begin + part.seconds),
                    *(worker, part.item_index if part.HasField("item_index") else -1, off_by),
                )
                for part in times
                if part.stage in _NAMES  # which go into a header, and into tables by tier
            ]

    def host_answered(self, began: float) -> None:
        """An image has come, or has not. began: when it was asked for, with all others; on time.perf_counter"""
        self.hosts_seconds = max(self.hosts_seconds, time.perf_counter() - began)

    def has_begun(self) -> None:
        """The first token is there."""
        self.first_token = self.since_start()

    def respond(self) -> None:
        """Something of the answer is on its way to the client; only the first time counts."""
        if self.responded is None and self.first_token is not None:
            self.responded = self.since_start()
            self.spans.append(Span("respond", self.first_token, self.responded))

    def has_landed(self, worker: str) -> None:
        """A decode worker has all the KV, and goes on; again where another attempt has come so far."""
        self._landed = self.since_start(), worker

    def decodes(self) -> None:
        """Tokens have come from a decode worker; only the first ones count."""
        if self._decodes is None:
            self._decodes = self.since_start()

    def has_decoded(self) -> None:
        """What was decoded is over, be it to the end or not."""
        if self._landed is None:
            return
        (began, worker), now = self._landed, self.since_start()
        until = max(began, now if self._decodes is None else self._decodes)
        self.spans += [Span("first_decode", began, until, worker), Span("decode", until, now, worker)]
        self._landed = self._decodes = None

    def since_start(self) -> float:
        return time.perf_counter() - self.started_at

    @property
    def seconds(self) -> Mapping[str, float]:
        """During which each stage went on, in the order in which they began; what went on side by side counts once."""
        seconds: dict[str, float] = {}
        ends: dict[str, float] = {}
        for span in sorted(self.spans, key=_begin):
            covered = ends.get(span.stage, span.begin)
            new = span.end - max(span.begin, covered)
            seconds[span.stage] = seconds.get(span.stage, 0.0) + (new if new > 0 else 0.0)
            ends[span.stage] = max(covered, span.end)
        return seconds


def _begin(span: Span) -> float:
    return span.begin
