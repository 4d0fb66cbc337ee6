"""The encoder engine: from a request's wish for an item to a claim on its rows.

    submit ─▶ rows ready? ─────────────────────────────────────────────────────────────▶ grant a claim, answer
              on their way? join ─────────────────────────────────────────────────────▶┐
              absent ─▶ queue ─▶ preprocess (threads) ─▶ schedule ─▶ encode (device loop) ─▶ publish ┘

One lock guards all bookkeeping and is never held while anything is computed, copied, read or called back. Claims end on
whatever thread ends them: a release, a cancel, the lease sweeper.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from triptych.config import EncoderSettings, TransferSettings
from triptych.engine.cache_control import CacheAction, CacheFound
from triptych.engine.callbacks import CallbackThread
from triptych.engine.device_errors import DeviceLost
from triptych.engine.embedding_store import EmbeddingStore
from triptych.engine.encoder_batches import BatchFigures
from triptych.engine.encoder_budgets import EncoderBudgets
from triptych.engine.encoder_flights import Flight, Phase
from triptych.engine.encoder_grants import Grant, Grants, RefMaker
from triptych.engine.encoder_graphs import SCRATCH_UNITS, BlockGraphs
from triptych.engine.encoder_jobs import EncodeJob, EncodeResult, ItemPreparer, OnDone, for_item
from triptych.engine.encoder_ledger import EncoderLedger, FlightBatch
from triptych.engine.encoder_preprocess import Preprocessing, Trace, preprocess_threads
from triptych.engine.encoder_runner import EncoderRunner, PlacedItem
from triptych.engine.encoder_scheduler import BatchBudget, EncoderScheduler
from triptych.engine.host_tier import HostTier
from triptych.engine.turn_clock import TurnClock
from triptych.errors import ConfigError, InternalError, Overloaded, TriptychError, WorkerLost
from triptych.journey import EmbeddingRef, Endpoint, RequestId
from triptych.metrics import WORKER_GAUGES, BucketCounts
from triptych.models.base import VisionTower
from triptych.transfer.leases import LeaseTable
from triptych.transfer.slab import Slab

__all__ = ["EncodeJob", "EncodeResult", "EncoderEngine", "ItemPreparer"]

log = logging.getLogger(__name__)

# Gauges of what this encoder does not have are 0.
_UNUSED = {metric.name: 0.0 for metric in WORKER_GAUGES if metric.name.startswith("encoder_")}


class EncoderEngine:
    """Encodes items once, however many requests ask for them. All methods may be called from any thread."""

    def __init__(
        self,
        tower: VisionTower,
        slab: Slab,
        prepare: ItemPreparer,
        leases: LeaseTable,
        owner: Endpoint,
        settings: EncoderSettings,
        budgets: EncoderBudgets,
        transfer: TransferSettings,
        on_fatal: Callable[[BaseException], None],
        graphs: BlockGraphs | None = None,
    ) -> None:
        """slab: holds what the budgets say, and the graphs' scratch units at its end
        on_fatal: told that this process can encode no more (the CUDA context is broken, say), before anyone else
        graphs: the tower's blocks, captured over the slab

        `trace` may be set before start: told of each item prepared and each batch encoded.
        Raises ConfigError for a slab that is too small and for a host tier that cannot be made.
        """
        self._prepare = prepare
        self._leases = leases
        self._settings = settings
        self._budgets = budgets
        self._graphs = graphs
        self.trace: Trace | None = None
        self._on_fatal = on_fatal
        host = HostTier.create(settings.host_cache_bytes, slab.describe().unit_bytes, slab.device)
        self._runner = EncoderRunner(tower, slab, transfer.checksums, host, graphs)
        self._changed = threading.Condition()
        self._refusal: TriptychError | None = None  # set once nothing more is taken on
        self._items_encoded = 0
        self._encode_seconds = 0.0
        self._batches = BatchFigures()
        self._clock = TurnClock()
        self._callbacks = CallbackThread("encoder-callbacks")
        self._loop = threading.Thread(target=self._run, name="encoder", daemon=True)
        self._ledger = self._new_ledger(self._new_store(slab, host), RefMaker(owner, slab.describe(), tower))
        self._preprocessing = self._new_preprocessing(tower)

    @property
    def max_item_tokens(self) -> int:
        """Encoder tokens of the largest item taken here: what the model takes and the arena can hold."""
        return self._budgets.max_item_tokens

    def start(self) -> None:
        self._callbacks.start()
        self._loop.start()

    def stop(self) -> None:
        """Finish the batch that is being encoded, answer everything else with WorkerLost, end all threads."""
        self._refuse(WorkerLost("the encoder has been stopped"))
        if self._loop.ident is not None and self._loop is not threading.current_thread():
            self._loop.join()
        self._preprocessing.stop()
        self._callbacks.stop()

    def submit(self, job: EncodeJob, on_done: OnDone) -> None:
        """Encode the job's item or find its rows; `on_done` is called once, on the engine's callback thread.

        Raises Overloaded when the job would have to wait and too many do already, WorkerLost after `stop` or once the
        device is lost; everything else that can go wrong is answered.
        """
        with self._changed:
            if self._refusal is not None:
                raise for_item(self._refusal, job.item)
            waiting, limit = self._ledger.flights.num_waiters, self._settings.max_queued_items
            if waiting >= limit and not self._ledger.has_ready(job.item):
                raise Overloaded(f"{waiting} jobs wait here, the limit is {limit}", item_index=job.item.index)
            self._ledger.admit(job, on_done)
            self._go_on()

    def hand_out(self, job: EncodeJob) -> EmbeddingRef | None:
        """What `submit` would answer at once, without that answer's way over threads; None: the rows are not ready."""
        with self._changed:
            return self._ledger.hand_out(job) if self._refusal is None else None

    def cancel(self, request_id: RequestId) -> None:
        """End what the request waits for (answered with Cancelled) and every claim granted to it here. Idempotent."""
        with self._changed:
            self._ledger.cancel(request_id)
            claims = self._ledger.grants.claims_of(request_id)
            self._go_on()
        # Outside the lock: the lease table calls back into _end_grant, by its rule on a thread that holds no lock.
        self._leases.release(claims)

    def control(self, action: CacheAction, digests: Collection[bytes]) -> CacheFound:
        """Operators' hands on the cache: pin, unpin or clear rows. Raises as `cache_control.control` does."""
        with self._changed:
            found = self._ledger.control(action, digests)
            self._go_on()
        return found

    def snapshot(self) -> dict[str, float]:
        """Gauges by their names in metrics.WORKER_GAUGES."""
        with self._changed:
            found, store = self._ledger.gauges(), self._ledger.store
            gauges = (
                _UNUSED
                | found
                | self._budgets.gauges()
                | (self._graphs.gauges() if self._graphs else {})
                | {
                    "encoder_prepared_bytes": found["encoder_prepared_tokens"] * self._prepare.token_bytes,
                    "encoder_arena_bytes": store.extents.num_units * store.unit_bytes,
                    "encoder_items_encoded_total": self._items_encoded,
                    "encoder_preprocess_seconds_total": self._preprocessing.seconds,
                    "encoder_encode_seconds_total": self._encode_seconds,
                }
            )
        return {name: float(value) for name, value in gauges.items()}

    def histograms(self) -> Mapping[str, BucketCounts]:
        """By their names in metrics.WORKER_HISTOGRAMS."""
        with self._changed:
            return self._batches.counts()

    def turn_seconds(self) -> float:
        """For how long the batch has been encoded that is; 0 while there is none."""
        return self._clock.seconds()

    def idle(self) -> bool:
        """Whether nothing waits, is computed, claimed or still to be told. Cached rows are fine."""
        with self._changed:
            return self._ledger.idle() and self._preprocessing.busy == 0 and self._callbacks.pending == 0

    def check(self) -> None:
        """Raises InvariantViolation naming the first rule that does not hold."""
        with self._changed:
            self._ledger.check()

    def _new_store(self, slab: Slab, host: HostTier | None) -> EmbeddingStore:
        arena, budgets = slab.describe(), self._budgets
        units, scratch = budgets.units(arena.unit_bytes), SCRATCH_UNITS if self._graphs else 0
        if arena.num_units < units + scratch:
            raise ConfigError(f"the arena has {arena.num_units} units, expected {units} and {scratch} of scratch")
        return EmbeddingStore(units, arena.unit_bytes, host, pins_leave_bytes=budgets.pins_leave_bytes)

    def _new_ledger(self, store: EmbeddingStore, make_ref: RefMaker) -> EncoderLedger:
        # B as set, not as raised to the largest item: that one goes alone, others need not swell to its size.
        budget = BatchBudget(self._budgets.items, self._budgets.configured_tokens)
        return EncoderLedger(
            store=store,
            scheduler=EncoderScheduler(budget),
            grants=Grants(store, self._leases, make_ref, self._end_grant),
            answer=lambda on_done, result: self._callbacks.put(partial(on_done, result)),
            row_bytes=self._budgets.row_bytes,
            max_item_tokens=self._budgets.max_item_tokens,
            modalities=self._budgets.modalities,
        )

    def _new_preprocessing(self, tower: VisionTower) -> Preprocessing:
        return Preprocessing(
            prepare=self._prepare,
            ledger=self._ledger,
            changed=self._changed,
            threads=preprocess_threads(self._settings.preprocess_threads, tower.device),
            max_batch_tokens=self._budgets.configured_tokens,
            device=tower.device,
            go_on=self._go_on,
            die=self._die,
            trace=self._traced,
        )

    def _traced(self, stage: str, began: float, ended: float) -> None:
        if self.trace is not None:
            self.trace(stage, began, ended)

    def _end_grant(self, grant: Grant) -> None:
        """Called by the lease table, on whatever thread ended the claim."""
        with self._changed:
            self._ledger.grants.end(grant)
            self._go_on()

    def _go_on(self) -> None:
        """Under the lock, after any change: feed the preprocessing threads, wake the device loop."""
        self._preprocessing.feed(self._refusal)
        self._changed.notify_all()

    def _refuse(self, refusal: TriptychError) -> None:
        """Take nothing more on and end what has not reached the device."""
        with self._changed:
            self._refusal = self._refusal or refusal
            self._ledger.fail_all(self._refusal)
            self._changed.notify_all()

    def _die(self, error: BaseException) -> None:
        log.critical("this process can encode no more", exc_info=error)
        self._on_fatal(error)
        self._refuse(WorkerLost(f"the encoder broke down: {type(error).__name__}"))

    # On the device loop's thread

    def _run(self) -> None:
        batch = FlightBatch()
        try:
            while (batch := self._next_batch()).flights:
                self._encode(batch)
        except Exception as error:
            # Items that fail are dealt with in the runner: what arrives here is a broken device or broken bookkeeping.
            self._die(error.__cause__ if isinstance(error, DeviceLost) and error.__cause__ else error)
            with self._changed:
                for flight in batch.flights:
                    if flight.phase is not Phase.DONE:
                        self._ledger.fail(flight, self._refusal or InternalError("the encoder broke down"))

    def _next_batch(self) -> FlightBatch:
        """Waits for the next batch; without flights once the engine is to stop."""
        with self._changed:
            while self._refusal is None:
                now = time.monotonic()
                self._ledger.expire(now)
                batch = self._ledger.next_batch(now)
                self._go_on()
                if batch.flights:
                    return batch
                self._changed.wait(self._ledger.pause(now))
        return FlightBatch()

    def _encode(self, batch: FlightBatch) -> None:
        began = time.monotonic()
        self._clock.begin()
        try:
            outcomes = self._runner.encode([_placed(flight) for flight in batch.flights], batch.demotions)
        finally:
            self._clock.rest()
        with self._changed:
            ended = time.monotonic()
            self._encode_seconds += ended - began
            self._batches.encoded([flight.item.rows for flight in batch.flights if flight.entry.host is None])
            for flight, outcome in zip(batch.flights, outcomes, strict=True):
                flight.encode = (began, ended)
                if isinstance(outcome, TriptychError):
                    self._ledger.fail(flight, outcome)
                else:
                    self._items_encoded += flight.entry.host is None  # else its rows were copied
                    self._ledger.publish(flight, outcome)
            self._go_on()
        self._traced("encode", began, ended)


def _placed(flight: Flight) -> PlacedItem:
    prepared, flight.prepared = flight.prepared, None  # the batch alone keeps the pixels
    summed = any(waiter.job.checksum for waiter in flight.waiters.values())
    return PlacedItem(prepared, flight.entry.span, flight.entry.generation, flight.entry.host, summed)
