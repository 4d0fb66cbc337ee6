"""All bookkeeping of an encoder under 10,000 random events on virtual time, every rule restated after each."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from tests.engine_encoder.rig import ARENA, OWNER
from triptych.engine.embedding_store import EmbeddingStore
from triptych.engine.encoder_flights import Flight, Phase
from triptych.engine.encoder_grants import Grant, Grants, RefMaker
from triptych.engine.encoder_jobs import EncodeJob, EncodeResult, OnDone
from triptych.engine.encoder_ledger import EncoderLedger
from triptych.engine.encoder_runner import Written
from triptych.engine.encoder_scheduler import BatchBudget, EncoderScheduler
from triptych.engine.host_books import HostBooks
from triptych.errors import (
    Cancelled,
    DeadlineExceeded,
    InternalError,
    InvalidMedia,
    MediaTooLarge,
    TriptychError,
    WorkerLost,
)
from triptych.journey import ClaimId, Grid, Item, Modality, RequestId, Run, new_request_id
from triptych.models.base import PreparedPixels, VisionTower
from triptych.transfer.leases import LeaseTable
from triptych.transfer.slab import create_slab

ROWS_PER_UNIT, ROW_BYTES, ARENA_UNITS, HOST_UNITS = 4, 16, 24, 12
SIDES = (4, 4, 8, 8, 12, 16)  # patches; 16 make 4 rows in one unit, 256 make 64 rows in 16 units
TOO_LARGE = 20  # 100 rows in 25 units
MOST_WAITING = 30
EXPECTED = (Cancelled, DeadlineExceeded, InternalError, InvalidMedia, MediaTooLarge, WorkerLost)


def item_of(kind: int, index: int, side: int) -> Item:
    """One of the images that are asked for."""
    rows = side * side // 4
    return Item(
        index=index,
        digest=kind.to_bytes(32, "big"),
        modality=Modality.IMAGE,
        width=14 * side,
        height=14 * side,
        grid=Grid(1, side, side),
        encoder_tokens=side * side,
        rows=rows,
        runs=(Run(0, rows),),
        span=Run(0, rows),
        media=0,
    )


@dataclass(eq=False)
class Asked:
    """One job and what has been answered."""

    job: EncodeJob
    answers: list[EncodeResult] = field(default_factory=list)


@dataclass
class Model:
    """Who goes first, by the obvious rule: the first request of all that ever wanted the item; then the prompt."""

    arrivals: dict[RequestId, int] = field(default_factory=dict)
    ranks: dict[int, tuple[int, int]] = field(default_factory=dict)  # by the flight's arrival

    def note(self, flight: Flight, job: EncodeJob) -> None:
        request = self.arrivals.setdefault(job.request_id, len(self.arrivals))
        rank = (request, job.item.index)
        self.ranks[flight.arrival] = min(rank, self.ranks.get(flight.arrival, rank))

    def order(self, flights: list[Flight]) -> list[int]:
        return sorted((flight.arrival for flight in flights), key=lambda arrival: (self.ranks[arrival], arrival))


class Driver:
    """Requests, preprocessing threads and a device, as chance has it, around a real ledger."""

    def __init__(self, seed: int, tower: VisionTower) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.leases = LeaseTable(clock=lambda: self.now)
        arena = create_slab("embedding", ARENA, ROWS_PER_UNIT * ROW_BYTES, ARENA_UNITS, torch.device("cpu"))
        host = HostBooks(HOST_UNITS, arena.unit_bytes) if seed % 2 else None
        store = EmbeddingStore(ARENA_UNITS, arena.unit_bytes, host)
        grants = Grants(store, self.leases, RefMaker(OWNER, arena.describe(), tower), self._end_grant)
        self.ledger = EncoderLedger(
            store=store,
            scheduler=EncoderScheduler(BatchBudget(4, 300, patience_seconds=1.0)),
            grants=grants,
            answer=self._answer,
            row_bytes=ROW_BYTES,
            max_item_tokens=TOO_LARGE**2,
        )
        arena.close()
        self.model = Model()
        self.requests: list[RequestId] = [new_request_id()]
        self.asked: list[Asked] = []
        self.unanswered = 0
        self.claims: list[ClaimId] = []
        self.preparing: list[Flight] = []
        self.encoding: tuple[Flight, ...] = ()
        self.refs = 0
        self.failures: dict[type[TriptychError], int] = {}

    # What may happen

    def ask(self) -> None:
        if self.unanswered == MOST_WAITING:
            return
        if self.chance.random() < 0.4:
            self.requests.append(new_request_id())
        kind = self.chance.randrange(24)
        side = TOO_LARGE if self.chance.random() < 0.02 else SIDES[kind % len(SIDES)]
        item = item_of(kind, self.chance.randrange(6), side)
        deadline = self.now + self.chance.choice((0.3, 5.0, math.inf))
        request_id = self.chance.choice(self.requests[-6:])
        self.admit(EncodeJob(request_id, item, bytes, self.chance.choice((0.5, 4.0)), deadline))

    def admit(self, job: EncodeJob) -> None:
        asked = Asked(job)
        self.asked.append(asked)
        self.unanswered += 1
        self.ledger.admit(job, asked.answers.append)
        for flight in self.ledger.flights:
            if any(waiter.job is job for waiter in flight.waiters.values()):
                self.model.note(flight, job)

    def prepare(self) -> None:
        if len(self.preparing) == 2:
            return
        queued = [flight for flight in self.ledger.flights if flight.phase is Phase.QUEUED]
        flight = self.ledger.next_to_prepare(max_tokens_ahead=900)
        if flight is not None:
            assert flight.arrival == self.model.order(queued)[0]
            self.preparing.append(flight)

    def end_preparing(self) -> None:
        if not self.preparing:
            return
        flight = self.preparing.pop(self.chance.randrange(len(self.preparing)))
        # As a preprocessing thread does: the first source that can be read, each failure its own request's.
        while flight.phase is Phase.PREPARING and self.chance.random() < 0.1:
            waiter = next(iter(flight.waiters.values()))
            self.ledger.fail_waiter(waiter, WorkerLost("the source is gone"))
        if flight.phase is not Phase.PREPARING:
            return
        if self.chance.random() < 0.05:
            self.ledger.fail(flight, InvalidMedia("it cannot be decoded"))
        else:
            item = flight.item
            self.ledger.prepared(flight, PreparedPixels(torch.empty(0), item.grid, item.rows))

    def encode(self) -> None:
        if self.encoding:
            return
        prepared = [flight for flight in self.ledger.flights if flight.phase is Phase.PREPARED]
        self.encoding = self.ledger.next_batch(self.now).flights
        order = self.model.order(prepared)
        places = [order.index(flight.arrival) for flight in self.encoding]
        assert places == sorted(places)
        assert all(flight.phase is Phase.ENCODING for flight in self.encoding)

    def end_encoding(self) -> None:
        for flight in self.encoding:
            if self.chance.random() < 0.05:
                self.ledger.fail(flight, InternalError("no such kernel"))
            else:
                self.ledger.publish(flight, Written(0, b"checksum"))
        self.encoding = ()

    def cancel(self) -> None:
        request_id = self.chance.choice(self.requests[-12:])
        self.ledger.cancel(request_id)
        self.leases.release(self.ledger.grants.claims_of(request_id))

    def release(self) -> None:
        if self.claims:
            self.leases.release([self.claims.pop(self.chance.randrange(len(self.claims)))])

    def expire(self) -> None:
        self.ledger.expire(self.now)
        self.leases.sweep()

    # Rules

    def step(self, act: Callable[[], None]) -> None:
        self.now += self.chance.uniform(0.0, 0.1)
        act()
        self.check()

    def check(self) -> None:
        self.ledger.check()
        flights = list(self.ledger.flights)
        assert self.model.order(flights) == [f.arrival for f in sorted(flights, key=lambda f: (f.rank, f.arrival))]
        found = [flight.entry.key for flight in flights if not flight.entry.retired]
        assert len(set(found)) == len(found), "an item is on its way twice"
        assert self.unanswered == self.ledger.flights.num_waiters

    def drain(self) -> None:
        """Nothing new; everything that is under way comes to its end."""
        for _ in range(400):
            for act in (self.prepare, self.end_preparing, self.encode, self.end_encoding, self.release, self.expire):
                self.step(act)
        assert self.ledger.idle()
        assert all(len(asked.answers) == 1 for asked in self.asked)

    def _answer(self, on_done: OnDone, result: EncodeResult) -> None:
        on_done(result)
        self.unanswered -= 1
        if result.ref is not None:
            self.refs += 1
            self.claims.append(result.ref.claim_id)
        else:
            assert isinstance(result.error, EXPECTED), result.error
            self.failures[type(result.error)] = self.failures.get(type(result.error), 0) + 1

    def _end_grant(self, grant: Grant) -> None:
        self.ledger.grants.end(grant)


@pytest.mark.parametrize("seed", range(6))
def test_ten_thousand_random_events_answer_every_job_once_and_leave_nothing_behind(
    seed: int, tower: VisionTower
) -> None:
    driver = Driver(seed, tower)
    often = [driver.ask, driver.prepare, driver.end_preparing, driver.encode, driver.end_encoding, driver.release]
    acts = [*often, *often, driver.ask, driver.cancel, driver.expire]
    for _ in range(10_000):
        driver.step(driver.chance.choice(acts))
    driver.drain()
    assert driver.refs > 500
    assert set(driver.failures) == set(EXPECTED), "the driver has not tried everything"
    assert driver.ledger.store.joins > 50
    assert driver.ledger.store.evictions > 50
    assert driver.leases.expired > 10
    driver.leases.check()
    assert len(driver.leases) == 0


def job_of(request_id: RequestId, kind: int, index: int) -> EncodeJob:
    return EncodeJob(request_id, item_of(kind, index, 4), bytes, 1.0, math.inf)


def all_prepared(driver: Driver) -> list[int]:
    """Kinds in the order in which they are prepared, which ends last first."""
    flights = list(iter(lambda: driver.ledger.next_to_prepare(900), None))
    for flight in reversed(flights):
        driver.ledger.prepared(flight, PreparedPixels(torch.empty(0), flight.item.grid, flight.item.rows))
    return [flight.item.digest[-1] for flight in flights]


def encoded(driver: Driver) -> list[int]:
    """Kinds in the next batch, which is encoded."""
    driver.encode()
    kinds = [flight.item.digest[-1] for flight in driver.encoding]
    driver.end_encoding()
    driver.check()
    return kinds


def test_items_go_by_request_and_within_it_in_the_order_of_the_prompt(tower: VisionTower) -> None:
    driver = Driver(0, tower)
    first, second = new_request_id(), new_request_id()
    for kind, (request_id, index) in enumerate([(first, 3), (second, 0), (first, 1), (second, 1), (first, 0)]):
        driver.admit(job_of(request_id, kind, index))
    assert all_prepared(driver) == [4, 2, 0, 1, 3]
    assert encoded(driver) == [4, 2, 0, 1]


def test_an_item_that_an_older_request_joins_goes_with_that_request(tower: VisionTower) -> None:
    driver = Driver(0, tower)
    old, new = new_request_id(), new_request_id()
    for request_id, kind, index in ((old, 0, 0), (new, 1, 0), (new, 2, 1), (old, 2, 1)):
        driver.admit(job_of(request_id, kind, index))
    assert all_prepared(driver) == [0, 2, 1]
    driver.admit(job_of(new, 3, 0))
    driver.admit(job_of(new, 0, 0))  # what a later one wants too moves nothing
    assert all_prepared(driver) == [3]
    driver.admit(job_of(old, 3, 2))  # prepared already, and yet it moves up
    assert encoded(driver) == [0, 2, 3, 1]


def test_a_request_keeps_its_place_between_its_windows(tower: VisionTower) -> None:
    driver = Driver(0, tower)
    old, new = new_request_id(), new_request_id()
    driver.admit(job_of(old, 0, 0))
    assert all_prepared(driver) == [0]
    driver.admit(job_of(new, 1, 0))
    assert encoded(driver) == [0]
    assert driver.ledger.flights.of_request(old) == ()
    driver.admit(job_of(old, 2, 1))
    assert all_prepared(driver) == [2, 1]
