"""Callbacks of an engine, called in order on a thread of their own."""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger(__name__)

Call = Callable[[], None]


class CallbackThread:
    """Keeps foreign code off the engine's threads and out of its locks. One that raises is logged, and the next runs.

    A cache hit is answered while the device loop is deep in a batch; a slow listener delays other listeners alone.
    """

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._pending = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def pending(self) -> int:
        """Calls put and not yet returned."""
        return self._pending

    def start(self) -> None:
        self._thread.start()

    def put(self, call: Call) -> None:
        """Never blocks; safe under any lock."""
        with self._lock:
            self._pending += 1
        self._queue.put(call)

    def stop(self) -> None:
        """Returns once everything put before has been called (at once when a callback itself asks)."""
        self._queue.put(None)
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            try:
                call()
            except Exception:
                log.exception("a callback failed; the engine goes on")
            del call  # nothing of it may outlive it while the queue is empty
            with self._lock:
                self._pending -= 1
