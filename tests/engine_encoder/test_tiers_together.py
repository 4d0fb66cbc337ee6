"""Arena, host tier, requests and operators at once: copies count little, and nothing is left behind."""

import random
import threading
import time
from collections.abc import Sequence

import pytest
import torch

from tests.engine_encoder.rig import OWNER, Rig, item_of, picture, running
from tests.engine_encoder.test_encoder_storm import PICTURES, Client, rows_alone
from triptych.config import EncoderSettings
from triptych.engine.cache_control import CacheAction
from triptych.engine.embedding_store import EmbeddingStore
from triptych.engine.encoder_flights import Phase
from triptych.engine.encoder_grants import Grants, RefMaker
from triptych.engine.encoder_jobs import EncodeJob, EncodeResult
from triptych.engine.encoder_ledger import EncoderLedger, FlightBatch
from triptych.engine.encoder_runner import Written
from triptych.engine.encoder_scheduler import BatchBudget, EncoderScheduler
from triptych.engine.host_books import HostBooks
from triptych.errors import Overloaded
from triptych.journey import Item, new_request_id
from triptych.models.base import PreparedPixels, VisionTower
from triptych.models.card import ModelCard
from triptych.services.encoder.prepare import Preparer
from triptych.transfer.leases import LeaseTable
from triptych.transfer.slab import create_slab

ROW_BYTES, ROWS_PER_UNIT = 16, 4
TOKENS = 64  # of each item here: 16 rows in 4 units
NOTHING = torch.empty(0, dtype=torch.uint8)  # nobody looks at pixels here


class Books:
    """A ledger over an arena of four items, with room for eight on the host."""

    def __init__(self, card: ModelCard, tower: VisionTower) -> None:
        arena = create_slab("embedding", 1, ROWS_PER_UNIT * ROW_BYTES, 16, torch.device("cpu"))
        self.host = HostBooks(32, arena.unit_bytes)
        self.store = EmbeddingStore(16, arena.unit_bytes, self.host)
        self.leases = LeaseTable()
        self.results: list[EncodeResult] = []
        grants = Grants(
            self.store, self.leases, RefMaker(OWNER, arena.describe(), tower), lambda grant: grants.end(grant)
        )
        self.ledger = EncoderLedger(
            store=self.store,
            scheduler=EncoderScheduler(BatchBudget(max_items=4, max_encoder_tokens=TOKENS + 3)),
            grants=grants,
            answer=lambda on_done, result: self.results.append(result),
            row_bytes=ROW_BYTES,
            max_item_tokens=TOKENS,
        )
        self.items = [item_of(card, picture(seed, 112, 112)) for seed in range(8)]
        arena.close()

    def ask(self, *items: Item) -> None:
        request_id = new_request_id()
        for item in items:
            job = EncodeJob(request_id, item, bytes, lease_seconds=60.0, deadline=time.monotonic() + 60.0)
            self.ledger.admit(job, self.results.append)
        self.ledger.check()

    def prepare(self) -> int:
        """How many items went through preprocessing."""
        count = 0
        while (flight := self.ledger.next_to_prepare(10**6)) is not None:
            self.ledger.prepared(flight, PreparedPixels(NOTHING, flight.item.grid, flight.item.rows))
            count += 1
        return count

    def work(self) -> FlightBatch:
        """One batch, done; its claims go at once."""
        batch = self.ledger.next_batch(time.monotonic())
        for flight in batch.flights:
            self.ledger.publish(flight, Written(0, b""))
        for result in self.results:
            if result.ref is not None:
                self.leases.release([result.ref.claim_id])
        self.ledger.check()
        return batch

    def fill(self, items: Sequence[Item]) -> None:
        for item in items:
            self.ask(item)
            self.prepare()
            assert len(self.work().flights) == 1
        self.results.clear()


def test_what_the_host_has_needs_no_preprocessing_and_hardly_any_of_a_batch(
    card: ModelCard, tower: VisionTower
) -> None:
    books = Books(card, tower)
    books.fill(books.items)  # the first four are on the host by now
    new = item_of(card, picture(99, 112, 112))
    books.ask(*books.items[:3], new)
    assert books.ledger.flights.items[Phase.PREPARED] == 3
    assert books.ledger.gauges()["encoder_prepared_tokens"] == 0
    assert books.prepare() == 1
    assert books.ledger.gauges()["encoder_prepared_tokens"] == TOKENS
    batch = books.work()
    assert len(batch.flights) == 4  # 3 x 1 + 64 tokens are just within the budget
    assert len(batch.demotions) == 4
    assert [result.cached for result in books.results] == [True, True, True, False]
    assert books.host.promotions == 3
    assert books.ledger.idle()


def test_a_cancelled_wish_for_the_host_leaves_the_books_as_they_were(card: ModelCard, tower: VisionTower) -> None:
    books = Books(card, tower)
    books.fill(books.items)
    before = books.ledger.gauges()
    books.ask(*books.items[:3])
    for waiter in [waiter for flight in books.ledger.flights for waiter in flight.waiters.values()]:
        books.ledger.fail_waiter(waiter, Overloaded("enough"))
        books.ledger.check()
    assert not books.ledger.next_batch(time.monotonic()).flights
    assert books.ledger.gauges() == before


class Operator(threading.Thread):
    """Pins, unpins and clears what others are just using."""

    def __init__(self, rig: Rig, digests: Sequence[bytes], seed: int, until: float) -> None:
        super().__init__()
        self.rig = rig
        self.digests = digests
        self.chance = random.Random(seed)
        self.until = until
        self.trouble: list[BaseException] = []

    def run(self) -> None:
        try:
            while time.monotonic() < self.until:
                self._act(self.chance.sample(self.digests, self.chance.randint(1, 3)))
                time.sleep(self.chance.random() * 0.05)
        except BaseException as error:
            self.trouble.append(error)

    def _act(self, digests: Sequence[bytes]) -> None:
        try:
            self.rig.engine.control(self.chance.choice(list(CacheAction)), digests)
        except Overloaded:
            self.rig.engine.control(CacheAction.UNPIN, self.digests)


@pytest.mark.parametrize("seed", range(2))
def test_a_storm_of_requests_and_an_operator_leave_nothing_behind(
    seed: int, card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    host_bytes = 128 * tower.width * tower.levels * tower.dtype.itemsize
    settings = EncoderSettings(max_items_per_batch=4, max_encoder_tokens_per_batch=256, host_cache_bytes=host_bytes)
    items = [(data, item_of(card, data)) for data in PICTURES]
    expected = {item.digest: rows_alone(tower, prepare(data, item)) for data, item in items}
    with running(card, tower, prepare, arena_rows=96, settings=settings) as rig:
        rig.engine._ledger.store.pins_leave_bytes = rig.slab.unit_bytes * 12  # the rig leaves no room for pins
        until = time.monotonic() + 1.5
        clients = [Client(rig, expected, 100 * seed + number, until) for number in range(5)]
        operator = Operator(rig, list(expected), seed, until)
        for thread in (*clients, operator):
            thread.start()
        while any(thread.is_alive() for thread in (*clients, operator)):
            rig.engine.check()
            rig.leases.sweep()
            time.sleep(0.003)
        assert [error for thread in (*clients, operator) for error in thread.trouble] == []
        rig.engine.control(CacheAction.CLEAR, ())
        time.sleep(0.03)
        rig.leases.sweep()
        rig.settle()
        wishes = [wish for client in clients for wish in client.wishes]
        assert all(len(wish.answers) == 1 for wish in wishes)
        assert sum(wish.result.ref is not None for wish in wishes) > 20
        assert not rig.fatal
        assert rig.gauge("arena_free_bytes") == rig.gauge("arena_bytes")
        assert rig.gauge("host_free_bytes") == rig.gauge("host_bytes")
