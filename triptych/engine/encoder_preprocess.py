"""From queued items to prepared ones: threads of their own, no further ahead of the device than allowed."""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from triptych.engine.device_errors import as_ours, is_device_lost
from triptych.engine.encoder_flights import Flight, Phase, Waiter
from triptych.engine.encoder_jobs import ItemPreparer
from triptych.engine.encoder_ledger import EncoderLedger
from triptych.errors import Cancelled, LayoutMismatch, TriptychError
from triptych.journey import Item
from triptych.models.base import Prepared

# Pixels prepared ahead of the device, in batches: enough to fill the next one while a large item waits for room, and
# a bound on host memory, since pixels are many times as large as the compressed image they come from.
_BATCHES_PREPARED_AHEAD = 3

_MOST_THREADS = 8  # chosen on CUDA: decoders and resizers let go of the GIL, what is between them does not

# Told (stage, begin, end) on time.monotonic: `preprocess` of an item, `encode` of a batch (on CUDA until it has been
# queued). Called by the thread that did it, which holds no lock then.
Trace = Callable[[str, float, float], None]


def preprocess_threads(configured: int, device: torch.device, cores: int | None = None) -> int:
    """Threads to decode and resize on: as configured; for 0, two where the tower computes on the same cores.

    cores: of this process; None: as the system says
    """
    if configured:
        return configured
    if device.type != "cuda":
        return 2
    return max(1, min(_MOST_THREADS, (cores or len(os.sched_getaffinity(0))) // 2))


class Preprocessing:
    """The threads that decode and resize. `busy` and `seconds` are read under the engine's lock."""

    def __init__(
        self,
        prepare: ItemPreparer,
        ledger: EncoderLedger,
        changed: threading.Condition,
        threads: int,
        max_batch_tokens: int,
        device: torch.device,
        go_on: Callable[[], None],
        die: Callable[[BaseException], None],
        trace: Trace,
    ) -> None:
        """changed: the engine's lock, which guards the ledger; go_on: called under it when an item has moved on

        device: the tower's; die: told of what no item is to blame for, without the lock
        """
        self.busy = 0  # threads that are at it
        self.seconds = 0.0  # spent by all threads
        self._prepare = prepare
        self._ledger = ledger
        self._changed = changed
        self._num_threads = threads
        self._max_bytes_ahead = _BATCHES_PREPARED_AHEAD * max_batch_tokens * prepare.token_bytes
        self._device = device
        self._trace = trace
        self._go_on = go_on
        self._die = die
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="preprocess")

    def feed(self, refusal: TriptychError | None) -> None:
        """Under the lock, after any change: give idle threads what is queued, unless the engine takes nothing on."""
        while self.busy < self._num_threads and refusal is None:
            flight = self._ledger.next_to_prepare(self._max_bytes_ahead // self._prepare.token_bytes)
            if flight is None:
                break
            self.busy += 1
            self._threads.submit(self._preprocess, flight)

    def stop(self) -> None:
        """Wait for what the threads are at."""
        self._threads.shutdown(wait=True)

    # On a preprocessing thread

    def _preprocess(self, flight: Flight) -> None:
        try:
            self._move_to_prepared(flight)
        except Exception as error:  # the pool would keep it to itself
            self._die(error)

    def _move_to_prepared(self, flight: Flight) -> None:
        began = time.monotonic()
        outcome = self._prepared(flight)
        with self._changed:
            self.busy -= 1
            flight.preprocess = (began, time.monotonic())
            self.seconds += flight.preprocess[1] - began
            if flight.phase is not Phase.DONE:  # else nobody wants it any more
                if isinstance(outcome, TriptychError):
                    self._ledger.fail(flight, outcome)
                else:
                    self._ledger.prepared(flight, outcome)
            self._go_on()
        self._trace("preprocess", *flight.preprocess)

    def _prepared(self, flight: Flight) -> Prepared | TriptychError:
        """The item as the tower takes it, from the first waiting job's source that can be read."""
        while (waiter := self._first_waiter(flight)) is not None:
            try:
                data = waiter.job.read_media()
            except Exception as error:
                self._fail_waiter(waiter, as_ours(error, "reading the image"))
                continue  # another job's way to the same bytes may work: a lost router takes its memory with it
            try:
                return self._staged(_verified(self._prepare(data, flight.item), flight.item))
            except Exception as error:
                if is_device_lost(error):
                    self._die(error)
                return as_ours(error, "preparing the image")
        return Cancelled("nobody waits for the item any more")

    def _first_waiter(self, flight: Flight) -> Waiter | None:
        with self._changed:
            return next(iter(flight.waiters.values()), None)

    def _fail_waiter(self, waiter: Waiter, error: TriptychError) -> None:
        with self._changed:
            if waiter.number in waiter.flight.waiters:  # else it has ended meanwhile
                self._ledger.fail_waiter(waiter, error)

    def _staged(self, prepared: Prepared) -> Prepared:
        """Where the device can fetch it from without anybody's waiting: this copy is not the device loop's to make."""
        if self._device.type == "cuda" and prepared.pixels.device.type == "cpu":
            return replace(prepared, pixels=prepared.pixels.pin_memory())
        return prepared


def _verified(prepared: Prepared, item: Item) -> Prepared:
    """Raises LayoutMismatch unless the prompt has been laid out for what the image really becomes."""
    found = (prepared.grid, prepared.grid.patches, prepared.rows)
    if found != (item.grid, item.encoder_tokens, item.rows):
        raise LayoutMismatch(
            f"the image becomes {found[0]} of {found[1]} patches and {found[2]} rows, "
            f"its prompt is laid out for {item.grid} of {item.encoder_tokens} and {item.rows}"
        )
    return prepared
