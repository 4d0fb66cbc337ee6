"""A worker's process that is asked by a signal to end: it finishes what it has first."""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
STOP_SECONDS = 10.0  # that it may take to end in order, once it has drained
_EMPTY_SECONDS = 2.0  # that it has held nothing before it ends by itself: whoever keeps it does so earlier


def finish_on_sigterm(drain: Callable[[], bool], stop: Callable[[], None], seconds: float) -> None:
    """From now on a SIGTERM lets the process drain, then end; a second one ends it at once. For the main thread.

    Whoever keeps the worker sees that it drains, and has another in its place before it ends.

    drain:   takes nothing new from now on; whether nothing is left
    seconds: that it gets for what it has
    """

    def finish() -> None:
        _drained(drain, seconds)
        log.info("the process ends, as a signal has asked for")
        last = threading.Timer(STOP_SECONDS, os._exit, (1,))
        last.daemon = True
        last.start()
        try:
            stop()
        finally:
            os._exit(0)

    def handle(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threading.Thread(target=finish, name="finish", daemon=True).start()

    signal.signal(signal.SIGTERM, handle)


def _drained(drain: Callable[[], bool], seconds: float) -> None:
    gives_up_at = time.monotonic() + seconds
    empty_since = math.inf
    while (now := time.monotonic()) < gives_up_at and now - empty_since < _EMPTY_SECONDS:
        try:
            empty_since = min(empty_since, now) if drain() else math.inf
        except Exception as error:  # it may only be too busy to say: nobody else would end this process
            log.warning("whether anything is left is not known for now: %r", error)
            empty_since = math.inf
        time.sleep(_LOOK_SECONDS)
