"""Whether the device still does anything, found out beside all work: a worker that is merely busy never looks hung."""

import logging
import threading
import time
from collections.abc import Callable

import torch

from triptych.transfer.cuda_events import HIGHEST_PRIORITY, new_stream

log = logging.getLogger(__name__)

HUNG_SECONDS = 10.0  # a trifle takes a thousandth of a second, on a crowded machine a tenth
_INTERVAL_SECONDS = 1.0
_STOP_SECONDS = 2.0


class Canary:
    """Asks for a trifle once in a while, on a thread of its own. `stop` ends it.

    trifle: returns once the device has done it; blocks for good if the device hangs
    """

    def __init__(self, trifle: Callable[[], None], interval_seconds: float = _INTERVAL_SECONDS) -> None:
        self._trifle = trifle
        self._interval_seconds = interval_seconds
        self._asked_at: float | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="canary", daemon=True)
        self._thread.start()

    def silent_seconds(self) -> float:
        """For how long it has been waiting for an answer."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def is_hung(self) -> bool:
        return self.silent_seconds() > HUNG_SECONDS

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)  # one that hangs stays, and ends with the process

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_seconds):
            self._asked_at = time.monotonic()
            try:
                self._trifle()
            except Exception:  # a broken context: whoever computes ends the process for it; until then it is silent
                log.exception("the device does not do the least thing")
                return
            self._asked_at = None


def trifle_on(device: torch.device) -> Callable[[], None]:
    """The least that proves the device to work, on a stream that waits for no other. It allocates nothing."""
    one, two = torch.ones(1, device=device), torch.empty(1, device=device)
    stream = new_stream(device, HIGHEST_PRIORITY) if device.type == "cuda" else None
    if stream is not None:
        torch.cuda.current_stream(device).synchronize()  # the number is there

    def trifle() -> None:
        with torch.inference_mode(), torch.cuda.stream(stream):
            torch.add(one, one, out=two)
            two.item()

    return trifle
