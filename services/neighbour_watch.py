"""Neighbours that have died are let go of, also when nobody has a claim of theirs that could fail."""

import logging
import threading
from collections.abc import Callable, Sequence

from triptych.journey import Endpoint

log = logging.getLogger(__name__)

_STOP_SECONDS = 10.0


class NeighbourWatch:
    """Asks each neighbour whose memory is open whether it is still there, once an interval, on a thread of its own.

    A restarted worker has another port, so nothing else need ever be heard of the one before: its slab, a whole
    worker's memory, would stay mapped for good.

    known:    whose memory is open
    is_there: whether that process answers; blocks
    forget:   closes its mappings behind the last copy; a later ref connects anew
    """

    def __init__(
        self,
        known: Callable[[], Sequence[Endpoint]],
        is_there: Callable[[Endpoint], bool],
        forget: Callable[[Endpoint], None],
        interval_seconds: float,
    ) -> None:
        self._known = known
        self._is_there = is_there
        self._forget = forget
        self._interval_seconds = interval_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="neighbour-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_seconds):
            try:
                self._look_round()
            except Exception:
                log.exception("looking after the neighbours failed; trying again in %.1f s", self._interval_seconds)

    def _look_round(self) -> None:
        for endpoint in self._known():
            if self._stopping.is_set():
                return
            if not self._is_there(endpoint) and not self._stopping.is_set():
                log.info("%s, incarnation %d, is gone", endpoint.address, endpoint.incarnation)
                self._forget(endpoint)
