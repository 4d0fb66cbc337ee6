"""Whether the device still does anything, found out beside all work: a worker that is merely busy never looks hung."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import inf

import torch

from triptych.transfer.cuda_events import HIGHEST_PRIORITY, new_stream

log = logging.getLogger(__name__)

HUNG_SECONDS = 10.0  # a trifle takes a thousandth of a second, on a crowded machine a tenth
STEP_SECONDS = {"cuda": 30.0, "cpu": 300.0}  # that a device may take for one step, where no setting says so
_INTERVAL_SECONDS = 1.0
_STOP_SECONDS = 2.0


class Canary:
    """Asks for a trifle once in a while, on a thread of its own, and looks on another at how far the device loops are.

    `stop` ends both. What hangs for half as long again as its loops may take is ended.
    """

    def __init__(
        self,
        trifle: Callable[[], None],
        interval_seconds: float = _INTERVAL_SECONDS,
        loops: Sequence[Callable[[], float]] = (),
        turn_seconds: float = inf,
        end: Callable[[str], None] = lambda what: None,
    ) -> None:
        """trifle: returns once the device has done it; blocks for good if the device hangs

        loops: each says for how many seconds it has been at its turn; turn_seconds: that one may take at most
        end: ends this process, and is told why
        """
        self._trifle = trifle
        self._interval_seconds = interval_seconds
        self._loops = loops
        self._turn_seconds = turn_seconds
        self._end = end
        self._asked_at: float | None = None
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, name="canary", daemon=True),
            threading.Thread(target=self._look, name="canary-watch", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def silent_seconds(self) -> float:
        """For how long it has been waiting for an answer."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def is_hung(self) -> bool:
        return bool(self._what_hangs())

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_STOP_SECONDS)  # one that hangs stays, and ends with the process

    def _what_hangs(self) -> str:
        """In words; empty where nothing does."""
        if (silent := self.silent_seconds()) > HUNG_SECONDS:
            return f"the device has not done the least thing for {silent:.0f} s"
        if (longest := max((loop() for loop in self._loops), default=0.0)) > self._turn_seconds:
            return f"the device loop has been at one step for {longest:.0f} s"
        return ""

    def _ask(self) -> None:
        while not self._stopping.wait(self._interval_seconds):
            is_first = self._asked_at is None
            if is_first:
                self._asked_at = time.monotonic()
            try:
                self._trifle()
            except Exception:  # silent from the first such time on, until it does the thing again
                if is_first:
                    log.exception("the device does not do the least thing")
            else:
                self._asked_at = None

    def _look(self) -> None:
        # Looks are counted, not seconds: a process that stood still, and goes on, has a moment to show that it works.
        num_hung = 0
        while not self._stopping.wait(self._interval_seconds):
            what = self._what_hangs()
            num_hung = num_hung + 1 if what else 0
            if num_hung * self._interval_seconds > self._turn_seconds / 2:
                self._end(what)
                return


def trifle_on(device: torch.device) -> Callable[[], None]:
    """The least that proves the device to work, on a stream that waits for no other. It allocates nothing."""
    one, two = torch.ones(1, device=device), torch.empty(1, device=device)
    stream = new_stream(device, HIGHEST_PRIORITY) if device.type == "cuda" else None
    if stream is not None:
        torch.cuda.current_stream(device).synchronize()  # the number is there

    def trifle() -> None:
        with torch.inference_mode(), torch.cuda.stream(stream) if stream is not None else nullcontext():
            torch.add(one, one, out=two)
            two.item()

    return trifle


def end_hung(what: str) -> None:
    """Ends this process: neighbours and routers notice at once, and another takes its place."""
    log.critical("%s: this worker ends", what)
    os._exit(71)
