"""Items on their way: moves by the table, jobs indexed every way they are looked for."""

import subprocess
import sys

import pytest

from tests.engine_encoder.rig import item_of, picture
from triptych.engine.embedding_store import EmbeddingStore
from triptych.engine.encoder_flights import Flight, Flights, Phase
from triptych.engine.encoder_jobs import EncodeJob
from triptych.engine.store_entry import Entry, ItemKey
from triptych.errors import InvariantViolation
from triptych.journey import RequestId
from triptych.models.card import ModelCard


class Desk:
    """A store and its flights."""

    def __init__(self, card: ModelCard) -> None:
        self.card = card
        self.store = EmbeddingStore(64, 1024)
        self.flights = Flights()

    def board(self, seed: int, request: bytes, deadline: float = 100.0, now: float = 0.0) -> Flight:
        item = item_of(self.card, picture(seed))
        entry, acquired = self.store.acquire(ItemKey.of(item), 1024)
        job = EncodeJob(RequestId(request), item, bytes, 1.0, deadline)
        self.flights.board(job, lambda result: None, entry, acquired, now)
        self.flights.check()
        return self.flight_of(entry)

    def flight_of(self, entry: Entry) -> Flight:
        return next(flight for flight in self.flights if flight.entry is entry)


@pytest.fixture
def desk(card: ModelCard) -> Desk:
    return Desk(card)


def test_jobs_for_one_item_share_a_flight(desk: Desk) -> None:
    assert desk.board(1, b"a") is desk.board(1, b"b")
    assert desk.board(2, b"a") is not desk.board(1, b"a")
    assert (len(desk.flights), desk.flights.num_waiters) == (2, 4)
    assert len(desk.flights.of_request(RequestId(b"a"))) == 3
    assert desk.flights.num_tokens == 2 * 16


def test_moves_that_are_not_in_the_table_are_refused(desk: Desk) -> None:
    flight = desk.board(1, b"a")
    for phase in (Phase.ENCODING, Phase.QUEUED):
        with pytest.raises(InvariantViolation, match="queued"):
            desk.flights.move(flight, phase)
    desk.flights.check()


def test_queued_items_keep_their_order(desk: Desk) -> None:
    first, second, third = (desk.board(seed, b"a") for seed in (1, 2, 3))
    desk.flights.move(first, Phase.PREPARING)
    assert desk.flights.first_queued is second
    for waiter in tuple(second.waiters.values()):
        desk.flights.leave(waiter)
    desk.flights.move(second, Phase.DONE)
    assert desk.flights.first_queued is third
    assert desk.flights.tokens_ahead == 16
    desk.flights.check()


def test_a_flight_that_nobody_waits_for_breaks_the_rules_until_it_is_ended(desk: Desk) -> None:
    flight = desk.board(1, b"a")
    desk.flights.leave(next(iter(flight.waiters.values())))
    with pytest.raises(InvariantViolation, match="nobody"):
        desk.flights.check()
    desk.flights.move(flight, Phase.DONE)
    desk.flights.check()


def test_each_overdue_job_is_told_once_unless_it_is_being_encoded(desk: Desk) -> None:
    flight = desk.board(1, b"a", deadline=1.0)
    desk.board(1, b"b", deadline=2.0)
    encoding = desk.board(2, b"c", deadline=1.0)
    for phase in (Phase.PREPARING, Phase.PREPARED, Phase.ENCODING):
        desk.flights.move(encoding, phase)
    assert desk.flights.next_deadline == 1.0
    overdue = desk.flights.overdue(1.5)
    assert [waiter.job.request_id for waiter in overdue] == [b"a"]
    assert overdue[0].flight is flight
    assert desk.flights.overdue(1.5) == []
    assert desk.flights.next_deadline == 2.0


def test_times_leave_out_what_was_over_before_the_job_came(desk: Desk) -> None:
    flight = desk.board(1, b"a", now=0.0)
    desk.board(1, b"b", now=5.0)
    flight.preprocess, flight.encode = (1.0, 3.0), (4.0, 8.0)
    early, late = flight.waiters.values()
    told = [(span.stage, span.begin, span.end) for span in early.times(9.0)]
    assert told == [
        *(("encode_queue", 0.0, 1.0), ("preprocess", 1.0, 3.0), ("encode_queue", 3.0, 4.0)),
        *(("encode", 4.0, 8.0), ("encode_queue", 8.0, 9.0)),
    ]
    assert [span[:3] for span in late.times(9.0)] == [("encode", 5.0, 8.0), ("encode_queue", 8.0, 9.0)]


def test_what_decides_does_not_load_torch() -> None:
    modules = ("embedding_store", "encoder_scheduler", "eviction", "extents")
    imports = "; ".join(f"import triptych.engine.{name}" for name in modules)
    code = f"import sys; {imports}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
