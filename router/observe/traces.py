"""Sends finished requests to a collector of OpenTelemetry, from a thread of its own: nobody waits for it."""

import importlib
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from triptych.config import ObserveSettings
from triptych.errors import ConfigError
from triptych.router.observe.recent import Entry
from triptych.router.observe.trace_context import TraceContext, new_trace

logger = logging.getLogger(__name__)

MOST_QUEUED = 2048  # requests
# Each batch costs a millisecond or two, whatever is in it; a large one keeps the event loop from the interpreter.
_MOST_AT_ONCE = 32
_GATHER_SECONDS = 2.0
STOP_SECONDS = 5.0
_PATH = "/v1/traces"

Traced = tuple[Entry, TraceContext]


class Sender(Protocol):
    """What `triptych.router.observe.otlp` makes; there stands more."""

    def send(self, requests: Sequence[Traced]) -> bool: ...

    def close(self) -> None: ...


def load_sender() -> Callable[[str, str], Sender]:
    """What makes a sender of a URL and a model's name. Raises ConfigError without OpenTelemetry's packages."""
    try:
        # By name: few want it, and it would be a fifth of a second of every router's start.
        make: Callable[[str, str], Sender] = importlib.import_module("triptych.router.observe.otlp").OtlpSender
    except ImportError as error:
        told = f"observe.otlp_endpoint needs packages that are missing ({error}): pip install 'triptych[otel]'"
        raise ConfigError(told) from error
    return make


class Traces:
    """Where the collector does not follow, spans are dropped and counted."""

    def __init__(
        self,
        settings: ObserveSettings,
        model: str,
        most_queued: int = MOST_QUEUED,
        stop_seconds: float = STOP_SECONDS,
        dropped: Callable[[int], None] = lambda num_spans: None,
    ) -> None:
        """dropped: told how many spans were lost, from any thread. Raises ConfigError as `load_sender` does."""
        self.num_dropped = 0  # spans
        self._dropped = dropped
        self._share = settings.trace_share
        self._random = random.Random()
        self._sender = load_sender()(settings.otlp_endpoint.rstrip("/").removesuffix(_PATH) + _PATH, model)
        self._most_queued = most_queued
        self._stop_seconds = stop_seconds
        self._changed = threading.Condition()  # guards what follows, and `num_dropped`
        self._waiting: deque[Traced] = deque()
        self._sending: list[Traced] = []
        self._is_ending = False  # nothing more will come
        self._is_over = False  # nor is anything sent any more
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def begin(self) -> TraceContext | None:
        """A new trace for a request that belongs to none; None where its share is not to be traced."""
        return new_trace() if self._random.random() < self._share else None

    def add(self, entry: Entry) -> None:
        """A request that is over."""
        if entry.trace is None or not entry.trace.is_sampled:
            return
        traced = entry, entry.trace
        with self._changed:
            has_room = len(self._waiting) < self._most_queued and not self._is_ending
            if has_room:
                self._waiting.append(traced)
                if len(self._waiting) in (1, _MOST_AT_ONCE):  # else nobody would do anything
                    self._changed.notify()
        if not has_room:
            self._lose([traced])

    def close(self) -> None:
        """Once everything queued is sent, or has had a few seconds for it."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(self._stop_seconds)
        with self._changed:
            self._is_over = True
            left = [*self._sending, *self._waiting]
        self._sender.close()
        self._lose(left)
        if self.num_dropped:
            logger.warning("%d spans were dropped, since no collector took them in time", self.num_dropped)

    def _lose(self, requests: Sequence[Traced]) -> None:
        num_lost = sum(_num_spans(entry) for entry, _ in requests)
        with self._changed:
            self.num_dropped += num_lost
        self._dropped(num_lost)

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                is_taken = self._sender.send(batch)
            except Exception:  # whatever is wrong with these, the next requests are told all the same
                logger.exception("%d requests have no spans", len(batch))
                is_taken = False
            with self._changed:
                self._sending = []
                is_lost = not is_taken and not self._is_over  # else `close` has counted them
            if is_lost:
                self._lose(batch)

    def _next_batch(self) -> list[Traced]:
        """Empty where there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_ending)
            self._changed.wait_for(lambda: len(self._waiting) >= _MOST_AT_ONCE or self._is_ending, _GATHER_SECONDS)
            if not self._is_over:
                self._sending = [self._waiting.popleft() for _ in range(min(_MOST_AT_ONCE, len(self._waiting)))]
            return self._sending


def _num_spans(entry: Entry) -> int:
    return 1 + len(entry.timeline.spans) + len(entry.timeline.calls)
