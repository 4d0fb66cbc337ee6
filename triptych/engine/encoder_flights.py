"""Items on their way through the encoder, and the jobs that wait for each.

       +------------------------v
    queued --> preparing --> prepared --> encoding --> done
       +-----------+-------------+-----------+----------^   failed, or (before encoding) wanted by nobody any more

A flight begins with the first job for rows that nobody has or makes; jobs for the same rows join it. It is dropped with
its last waiting job, unless its rows are being computed already: then they become cache. Bookkeeping alone.

Items go in the order in which they are consumed: by the arrival of the request that came first of all that want it, and
within a request by their place in the prompt.
"""

import enum
import heapq
import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from triptych.engine.encoder_jobs import EncodeJob, OnDone
from triptych.engine.encoder_waiting import Rank
from triptych.engine.store_entry import Acquired, Entry
from triptych.errors import InvariantViolation
from triptych.journey import Item, RequestId
from triptych.models.base import Prepared
from triptych.stages import StageSpan


class Phase(enum.Enum):
    QUEUED = "queued"  # for preprocessing
    PREPARING = "preparing"
    PREPARED = "prepared"  # waits for a batch and for room
    ENCODING = "encoding"
    DONE = "done"


_MOVES: Mapping[Phase, tuple[Phase, ...]] = {
    Phase.QUEUED: (Phase.PREPARING, Phase.PREPARED, Phase.DONE),  # prepared at once: the rows come from the host tier
    Phase.PREPARING: (Phase.PREPARED, Phase.DONE),
    Phase.PREPARED: (Phase.ENCODING, Phase.DONE),
    Phase.ENCODING: (Phase.DONE,),
    Phase.DONE: (),
}

# A request keeps its place in the order between its windows, when nothing of it waits here; the latest so many do.
_REQUESTS_REMEMBERED = 4096

Span = tuple[float, float]  # begin and end, on time.monotonic


@dataclass(slots=True, eq=False)
class Flight:
    """One item between its first job and its rows."""

    arrival: int  # order of arrival, unique
    item: Item  # as the first job names it; those who join differ in index and place at most
    entry: Entry
    rank: Rank  # the smaller one is prepared and encoded first
    phase: Phase = Phase.QUEUED
    waiters: dict[int, "Waiter"] = field(default_factory=dict)  # by number
    prepared: Prepared | None = None
    preprocess: Span = (0.0, 0.0)
    encode: Span = (0.0, 0.0)


@dataclass(slots=True, eq=False)
class Waiter:
    """One job that waits for a flight, holding one claim on its entry."""

    number: int
    job: EncodeJob
    on_done: OnDone
    flight: Flight
    acquired: Acquired
    since: float

    @property
    def joined(self) -> bool:
        """Whether another job had begun the flight."""
        return self.acquired is Acquired.JOINED

    def times(self, now: float) -> tuple[StageSpan, ...]:
        """The stages as this job has seen them: what was over when it joined does not count."""
        item, at = self.job.item.index, self.since
        spans: list[StageSpan] = []
        for stage, (begin, end) in (("preprocess", self.flight.preprocess), ("encode", self.flight.encode)):
            if end > at:
                if begin > at:
                    spans.append(StageSpan("encode_queue", at, begin, item))
                spans.append(StageSpan(stage, max(at, begin), end, item))
                at = end
        if now > at or not spans:
            spans.append(StageSpan("encode_queue", at, max(now, at), item))
        return tuple(spans)


class Flights:
    """All flights and their waiters. Not thread-safe: the engine's lock guards it."""

    def __init__(self) -> None:
        self.items = dict.fromkeys(Phase, 0)  # flights by phase
        self.tokens = dict.fromkeys(Phase, 0)  # their encoder tokens
        self._by_entry: dict[Entry, Flight] = {}
        self._by_arrival: dict[int, Flight] = {}
        self._queued: list[tuple[Rank, int]] = []  # heap of (rank, arrival); what has moved on stays till it is met
        self._request_arrivals: OrderedDict[RequestId, int] = OrderedDict()  # latest seen last
        self._waiters: dict[int, Waiter] = {}
        self._by_request: dict[RequestId, dict[int, Waiter]] = {}
        self._deadlines: list[tuple[float, int]] = []  # (deadline, waiter number); numbers of the gone stay till then
        self._numbers = itertools.count()

    def __iter__(self) -> Iterator[Flight]:
        return iter(tuple(self._by_arrival.values()))

    def __len__(self) -> int:
        return len(self._by_arrival)

    def __getitem__(self, arrival: int) -> Flight:
        return self._by_arrival[arrival]

    @property
    def num_waiters(self) -> int:
        return len(self._waiters)

    @property
    def num_tokens(self) -> int:
        """Encoder tokens of all flights."""
        return sum(self.tokens.values())

    @property
    def tokens_ahead(self) -> int:
        """Encoder tokens whose patches are in memory, or soon will be, and that no batch has taken yet."""
        return self.tokens[Phase.PREPARING] + self.tokens[Phase.PREPARED]

    @property
    def first_queued(self) -> Flight | None:
        while self._queued and not self._is_queued(*self._queued[0]):
            heapq.heappop(self._queued)
        return self._by_arrival[self._queued[0][1]] if self._queued else None

    def board(self, job: EncodeJob, on_done: OnDone, entry: Entry, acquired: Acquired, now: float) -> Flight:
        """Let a job wait for its entry's flight, which begins with it unless there is one.

        The flight takes the best rank of all who have ever waited for it, so what is scheduled may have to move up.
        """
        rank = (self._arrival_of(job.request_id), job.item.index)
        flight = self._by_entry.get(entry)
        if flight is None:
            flight = self._begin(job.item, entry, rank)
        elif rank < flight.rank:
            self._move_up(flight, rank)
        waiter = Waiter(next(self._numbers), job, on_done, flight, acquired, now)
        flight.waiters[waiter.number] = waiter
        self._waiters[waiter.number] = waiter
        self._by_request.setdefault(job.request_id, {})[waiter.number] = waiter
        if job.deadline < math.inf:
            heapq.heappush(self._deadlines, (job.deadline, waiter.number))
        return flight

    def leave(self, waiter: Waiter) -> None:
        """The job waits no more; what becomes of its flight is the caller's decision."""
        del self._waiters[waiter.number]
        del waiter.flight.waiters[waiter.number]
        of_request = self._by_request[waiter.job.request_id]
        del of_request[waiter.number]
        if not of_request:
            del self._by_request[waiter.job.request_id]

    def move(self, flight: Flight, phase: Phase) -> None:
        """Raises InvariantViolation for a move that is not in the table; done flights are forgotten."""
        if phase not in _MOVES[flight.phase]:
            raise InvariantViolation(f"item {flight.arrival} cannot go from {flight.phase.value} to {phase.value}")
        self._count(flight, -1)
        flight.phase = phase
        if phase is Phase.DONE:
            del self._by_arrival[flight.arrival]
            del self._by_entry[flight.entry]
        else:
            self._count(flight, 1)

    def of_request(self, request_id: RequestId) -> tuple[Waiter, ...]:
        return tuple(self._by_request.get(request_id, {}).values())

    def overdue(self, now: float) -> list[Waiter]:
        """Waiters whose deadline has passed while they queue; each is told once. Those being encoded may finish."""
        found = []
        while self._deadlines and self._deadlines[0][0] <= now:
            waiter = self._waiters.get(heapq.heappop(self._deadlines)[1])
            if waiter is not None and waiter.flight.phase is not Phase.ENCODING:
                found.append(waiter)
        return found

    @property
    def next_deadline(self) -> float | None:
        """When the next waiter may become overdue."""
        return self._deadlines[0][0] if self._deadlines else None

    def check(self) -> None:
        """Raises InvariantViolation naming the first rule that does not hold."""
        for phase in Phase:
            flights = [flight for flight in self if flight.phase is phase]
            tokens = sum(flight.item.encoder_tokens for flight in flights)
            if (self.items[phase], self.tokens[phase]) != (len(flights), tokens):
                raise InvariantViolation(
                    f"{self.items[phase]} items of {self.tokens[phase]} tokens are counted {phase.value}, "
                    f"{len(flights)} of {tokens} are"
                )
        for flight in self:
            if not flight.waiters and flight.phase is not Phase.ENCODING:
                raise InvariantViolation(f"item {flight.arrival} is {flight.phase.value} for nobody")
            if self._by_entry.get(flight.entry) is not flight:
                raise InvariantViolation(f"item {flight.arrival} is not found by its entry")
        for waiters in (
            {number: waiter for flight in self for number, waiter in flight.waiters.items()},
            {number: waiter for each in self._by_request.values() for number, waiter in each.items()},
        ):
            if waiters != self._waiters:
                raise InvariantViolation(f"{len(self._waiters)} jobs wait, {len(waiters)} are indexed")
        queued = {(flight.rank, flight.arrival) for flight in self if flight.phase is Phase.QUEUED}
        if {place for place in self._queued if self._is_queued(*place)} != queued:
            raise InvariantViolation("the preprocessing queue and the queued items differ")

    def _begin(self, item: Item, entry: Entry, rank: Rank) -> Flight:
        flight = Flight(next(self._numbers), item, entry, rank)
        self._by_entry[entry] = flight
        self._by_arrival[flight.arrival] = flight
        heapq.heappush(self._queued, (rank, flight.arrival))
        self._count(flight, 1)
        return flight

    def _move_up(self, flight: Flight, rank: Rank) -> None:
        flight.rank = rank
        if flight.phase is Phase.QUEUED:
            heapq.heappush(self._queued, (rank, flight.arrival))

    def _is_queued(self, rank: Rank, arrival: int) -> bool:
        flight = self._by_arrival.get(arrival)
        return flight is not None and flight.phase is Phase.QUEUED and flight.rank == rank

    def _arrival_of(self, request_id: RequestId) -> int:
        """When the request first came, in order of arrival."""
        arrival = self._request_arrivals.pop(request_id, None)
        self._request_arrivals[request_id] = next(self._numbers) if arrival is None else arrival
        if len(self._request_arrivals) > _REQUESTS_REMEMBERED:
            self._request_arrivals.popitem(last=False)
        return self._request_arrivals[request_id]

    def _count(self, flight: Flight, sign: int) -> None:
        self.items[flight.phase] += sign
        self.tokens[flight.phase] += sign * flight.item.encoder_tokens
