"""All bookkeeping of an encoder: who waits for what, what comes next, who is told. No threads, no tensors touched.

Every job taken on is answered once: by rows found, made, or joined; by its item's failure; by its own end.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from triptych.engine.cache_control import CacheAction, CacheFound, control
from triptych.engine.embedding_store import EmbeddingStore
from triptych.engine.encoder_flights import Flight, Flights, Phase, Waiter
from triptych.engine.encoder_grants import Grants
from triptych.engine.encoder_jobs import EncodeJob, EncodeResult, OnDone, failure
from triptych.engine.encoder_runner import Written
from triptych.engine.encoder_scheduler import EncoderScheduler, WaitingItem
from triptych.engine.host_books import Demotion, HostBooks
from triptych.engine.store_entry import Acquired, Entry, ItemKey
from triptych.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidMedia,
    InvariantViolation,
    MediaTooLarge,
    TriptychError,
)
from triptych.journey import EmbeddingRef, Item, Modality, RequestId
from triptych.models.base import Prepared
from triptych.stages import StageSpan

Answer = Callable[[OnDone, EncodeResult], None]

_TOKENS_OF_A_COPY = 1  # what an item costs its batch whose rows are copied from the host, not made


@dataclass(frozen=True, slots=True)
class FlightBatch:
    """What the device is to do next. `demotions`: rows to be saved to the host before anything else is written."""

    flights: tuple[Flight, ...] = ()
    demotions: tuple[Demotion, ...] = ()


class EncoderLedger:
    """Store, flights, schedule and grants as one. Not thread-safe: the engine's lock guards it."""

    def __init__(
        self,
        store: EmbeddingStore,
        scheduler: EncoderScheduler,
        grants: Grants,
        answer: Answer,
        row_bytes: int,
        max_item_tokens: int,
        modalities: frozenset[Modality] = frozenset({Modality.IMAGE}),
    ) -> None:
        """answer: hands a result over without calling anyone back at once; modalities: what the tower takes."""
        self.store = store
        self.flights = Flights()
        self.grants = grants
        self._scheduler = scheduler
        self._answer = answer
        self._row_bytes = row_bytes
        self._max_item_tokens = max_item_tokens
        self._modalities = modalities
        self._from_host: dict[int, int] = {}  # encoder tokens of prepared flights that have no patches, by arrival
        self._demotions: tuple[Demotion, ...] = ()  # of the batch handed out last

    # Jobs come

    def has_ready(self, item: Item) -> bool:
        return self.store.has_ready(ItemKey.of(item))

    def admit(self, job: EncodeJob, on_done: OnDone) -> None:
        """Answer the job with rows that are ready, or let it wait for them."""
        now = time.monotonic()
        try:
            entry, acquired = self._acquire(job.item)
        except TriptychError as error:
            self._answer(on_done, failure(job.item, error, (), cached=False))
            return
        if acquired is Acquired.HIT:
            ref = self.grants.grant(job, entry)
            self._answer(on_done, EncodeResult(job.item.index, ref, None, _at_once(job, now), cached=True))
            return
        flight = self.flights.board(job, on_done, entry, acquired, now)
        if flight.phase is Phase.PREPARED:
            self._scheduler.rerank(flight.arrival, flight.rank)  # an older request may have joined
        elif flight.phase is Phase.QUEUED and entry.host is not None:
            self._from_host[flight.arrival] = flight.item.encoder_tokens
            self._wait_for_batch(flight, _TOKENS_OF_A_COPY)

    def hand_out(self, job: EncodeJob) -> EmbeddingRef | None:
        """The job's ref where its rows are ready; None, and nothing waits for them, where not."""
        if not self.has_ready(job.item):
            return None
        entry, _ = self._acquire(job.item)
        return self.grants.grant(job, entry)

    # Items move on

    def next_to_prepare(self, max_tokens_ahead: int) -> Flight | None:
        """The queued item to prepare now; None while as much as allowed lies prepared, one item being the least."""
        flight = self.flights.first_queued
        ahead = self._tokens_ahead
        if flight is None or (ahead and ahead + flight.item.encoder_tokens > max_tokens_ahead):
            return None
        self.flights.move(flight, Phase.PREPARING)
        return flight

    def prepared(self, flight: Flight, item: Prepared) -> None:
        flight.prepared = item
        self._wait_for_batch(flight, flight.item.encoder_tokens)

    def next_batch(self, now: float) -> FlightBatch:
        """What to encode now, placed in the arena; without flights when nothing can be.

        By its next call the batch before must have been worked on.
        """
        if self.store.host is not None:
            self.store.host.settle(self._demotions)
            self._demotions = ()
        batch = self._scheduler.next_batch(now, self._place)
        if batch.blocked is not None:
            self.store.make_way(batch.blocked.units)
        flights = tuple(self.flights[item.arrival] for item in batch.items)
        for flight in flights:
            self.flights.move(flight, Phase.ENCODING)
            self._from_host.pop(flight.arrival, None)
        if flights:
            self._demotions = self.store.take_demotions()
        return FlightBatch(flights, self._demotions)

    def publish(self, flight: Flight, written: Written) -> None:
        """The rows are there: a claim for everyone who waits for them."""
        from_host = flight.entry.host is not None
        self.store.publish(flight.entry, written.event, written.checksum)
        now = time.monotonic()
        for waiter in tuple(flight.waiters.values()):
            ref = self.grants.grant(waiter.job, flight.entry)
            result = EncodeResult(waiter.job.item.index, ref, None, waiter.times(now), waiter.joined or from_host)
            self._answer(waiter.on_done, result)
            self.flights.leave(waiter)
        self.flights.move(flight, Phase.DONE)

    # Something ends early

    def fail(self, flight: Flight, error: TriptychError) -> None:
        """The item cannot be had: everyone who waits for it is told so, each with the index it has there."""
        for waiter in tuple(flight.waiters.values()):
            self._answer_failure(waiter, error)
            self.flights.leave(waiter)
        self.store.abandon(flight.entry)
        self._end(flight)

    def fail_waiter(self, waiter: Waiter, error: TriptychError) -> None:
        """One job ends. Its flight goes on for the others, or because it is being encoded already."""
        flight = waiter.flight
        self._answer_failure(waiter, error)
        self.flights.leave(waiter)
        self.store.release(flight.entry)
        if not flight.waiters and flight.phase is not Phase.ENCODING:
            self._end(flight)

    def expire(self, now: float) -> None:
        for waiter in self.flights.overdue(now):
            self.fail_waiter(waiter, DeadlineExceeded("the request's time was up before its image was encoded"))

    def cancel(self, request_id: RequestId) -> None:
        """End what the request waits for. The claims it was granted are the lease table's to end."""
        for waiter in self.flights.of_request(request_id):
            self.fail_waiter(waiter, Cancelled("the request was cancelled"))

    def fail_all(self, error: TriptychError) -> None:
        """End whatever has not reached the device."""
        for flight in self.flights:
            if flight.phase is not Phase.ENCODING:
                self.fail(flight, error)

    def pause(self, now: float) -> float | None:
        """Seconds after which time alone changes what can be done; None when only an event can."""
        pauses = [self.flights.next_deadline - now] if self.flights.next_deadline is not None else []
        if len(self._scheduler):
            pauses.append(self._scheduler.budget.patience_seconds)
        return max(0.0, min(pauses)) if pauses else None

    def control(self, action: CacheAction, digests: Collection[bytes]) -> CacheFound:
        """Operators' hands on the cache. Raises as `cache_control.control` does."""
        return control(self.store, action, digests)

    # Looking at it

    def gauges(self) -> dict[str, float]:
        flights, store = self.flights, self.store
        return {
            "encoder_queued_items": len(flights),
            "encoder_queued_tokens": flights.num_tokens,
            "encoder_preprocess_queued_items": flights.items[Phase.QUEUED],
            "encoder_prepared_tokens": self._tokens_ahead,
            "encoder_waiting_jobs": flights.num_waiters,
            "encoder_arena_free_bytes": store.free_bytes,
            "encoder_arena_largest_free_bytes": store.extents.largest_free * store.unit_bytes,
            "encoder_arena_fragmentation_ratio": store.extents.fragmentation,
            "encoder_cached_items": store.num_ready,
            "encoder_claims": store.num_claims,
            "encoder_cache_hits_total": store.hits,
            "encoder_cache_joins_total": store.joins,
            "encoder_cache_evictions_total": store.evictions,
            "encoder_cache_oversize_total": store.oversize,
            "encoder_cache_replacements_total": store.replacements,
            "encoder_cache_pinned_bytes": store.pinned_bytes,
        } | _host_gauges(store.host)

    def idle(self) -> bool:
        return len(self.flights) == 0 and self.store.idle()

    def check(self) -> None:
        """Raises InvariantViolation naming the first rule that does not hold."""
        self.store.check()
        self._scheduler.check()
        self.flights.check()
        held, waiting, pinned = len(self.grants), self.flights.num_waiters, len(self.store.pinned)
        if self.store.num_claims != waiting + held + pinned:
            raise InvariantViolation(
                f"{self.store.num_claims} claims; {waiting} jobs wait, {held} leases are held, {pinned} are pinned"
            )
        if len(self._scheduler) != self.flights.items[Phase.PREPARED]:
            raise InvariantViolation(
                f"{len(self._scheduler)} items are scheduled, {self.flights.items[Phase.PREPARED]} are prepared"
            )

    @property
    def _tokens_ahead(self) -> int:
        """Encoder tokens whose pixels are in memory, or soon will be, and that no batch has taken yet."""
        return self.flights.tokens_ahead - sum(self._from_host.values())

    def _acquire(self, item: Item) -> tuple[Entry, Acquired]:
        if item.modality not in self._modalities:
            taken = ", ".join(sorted(modality.value for modality in self._modalities))
            raise InvalidMedia(f"the encoder takes {taken}, the item is {item.modality.value}", item_index=item.index)
        if item.encoder_tokens > self._max_item_tokens:
            raise MediaTooLarge(
                f"the image becomes {item.encoder_tokens} encoder tokens, this encoder takes {self._max_item_tokens}"
            )
        return self.store.acquire(ItemKey.of(item), item.rows * self._row_bytes)

    def _wait_for_batch(self, flight: Flight, tokens: int) -> None:
        self.flights.move(flight, Phase.PREPARED)
        self._scheduler.add(flight.arrival, tokens, flight.entry.units, flight.rank)

    def _place(self, waiting: WaitingItem) -> bool:
        return self.store.place(self.flights[waiting.arrival].entry)

    def _end(self, flight: Flight) -> None:
        self._scheduler.remove(flight.arrival)
        self._from_host.pop(flight.arrival, None)
        self.flights.move(flight, Phase.DONE)

    def _answer_failure(self, waiter: Waiter, error: TriptychError) -> None:
        times = waiter.times(time.monotonic())
        self._answer(waiter.on_done, failure(waiter.job.item, error, times, waiter.joined))


def _at_once(job: EncodeJob, now: float) -> tuple[StageSpan, ...]:
    return (StageSpan("encode_queue", now, now, job.item.index),)


def _host_gauges(host: HostBooks | None) -> dict[str, float]:
    if host is None:
        return {}
    return {
        "encoder_host_bytes": host.num_bytes,
        "encoder_host_free_bytes": host.free_bytes,
        "encoder_host_demotions_total": host.demotions,
        "encoder_host_promotions_total": host.promotions,
        "encoder_host_failures_total": host.failures,
    }
