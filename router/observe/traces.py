"""Sends finished requests to a collector of OpenTelemetry, from a thread of its own: nobody waits for it."""

import json
import logging
import queue
import random
import threading
from collections.abc import Callable
from importlib.metadata import version

import httpcore

from triptych.config import ObserveSettings
from triptych.errors import ClusterError
from triptych.router.observe.otlp import export_request, num_spans
from triptych.router.observe.recent import Entry
from triptych.router.observe.trace_context import TraceContext, new_trace

logger = logging.getLogger(__name__)

MOST_QUEUED = 2048  # requests
_MOST_AT_ONCE = 64
_SEND_SECONDS = 10.0
_STOP_SECONDS = 5.0
_PATH = "/v1/traces"
_OK = 200


class Traces:
    """Where the collector does not follow, spans are dropped and counted."""

    def __init__(
        self,
        settings: ObserveSettings,
        model: str,
        most_queued: int = MOST_QUEUED,
        dropped: Callable[[int], None] = lambda num_spans: None,
    ) -> None:
        """dropped: told how many spans were lost, from any thread"""
        self.num_dropped = 0  # spans
        self._dropped = dropped
        self._url = settings.otlp_endpoint.rstrip("/").removesuffix(_PATH) + _PATH
        self._share = settings.trace_share
        self._model = model
        self._random = random.Random()
        self._version = version("triptych")
        self._requests: queue.Queue[tuple[Entry, TraceContext] | None] = queue.Queue(most_queued)
        self._is_failing = False
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
        try:
            self._requests.put_nowait((entry, entry.trace))
        except queue.Full:
            self._lose(num_spans(entry))

    def close(self) -> None:
        """Once everything queued is sent, or has had a few seconds for it."""
        try:
            self._requests.put(None, timeout=_STOP_SECONDS)
        except queue.Full:
            return
        self._thread.join(_STOP_SECONDS)
        if self.num_dropped:
            logger.warning("%d spans were dropped, since no collector took them in time", self.num_dropped)

    def _lose(self, num_lost: int) -> None:
        self.num_dropped += num_lost
        self._dropped(num_lost)

    def _run(self) -> None:
        with httpcore.ConnectionPool() as http:
            is_over = False
            while not is_over:
                batch = [self._requests.get()]
                while len(batch) < _MOST_AT_ONCE and not self._requests.empty():
                    batch.append(self._requests.get())
                is_over = None in batch
                self._send(http, [one for one in batch if one is not None])

    def _send(self, http: httpcore.ConnectionPool, batch: list[tuple[Entry, TraceContext]]) -> None:
        if not batch:
            return
        try:
            body = json.dumps(export_request(batch, self._model, self._version), separators=(",", ":"))
            response = http.request(
                *("POST", self._url),
                headers={"content-type": "application/json", "user-agent": "triptych"},
                content=body.encode(),
                extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), _SEND_SECONDS)},
            )
            if not _OK <= response.status < _OK + 100:
                raise ClusterError(f"it answers with status {response.status}")
            self._is_failing = False
        except Exception as error:  # whatever is wrong with a collector, the next requests are told all the same
            self._lose(sum(num_spans(entry) for entry, _ in batch))
            if not self._is_failing:  # once, not for every batch while it is away
                logger.warning("the collector of traces takes no spans: %s", error or type(error).__name__)
            self._is_failing = True
