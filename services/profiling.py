"""A look at what a worker's device does, on demand: whoever wants one leaves a file, the worker leaves a trace.

`serve.profile_folder` names a folder. A file `ask-<number>.json` in it, `{"seconds": 1.5}`, makes every worker trace
its device for so long and write `<worker id>-<number>.json.gz`, in the format of torch's profiler (Chrome's). While a
worker is at it, `<worker id>-<number>.begun` stands beside. A file and no rpc, as with faults: nobody reaches it over a
network.
"""

import json
import logging
import threading
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
_MOST_SECONDS = 10.0  # a trace grows by tens of megabytes a second
_JOIN_SECONDS = 20.0


class Profiler:
    """Watches the folder on a thread of its own; `stop` ends that."""

    def __init__(self, folder: Path, worker_id: str, device: torch.device) -> None:
        """worker_id: what its files begin with"""
        self._folder = folder
        self._worker_id = worker_id
        self._device = device
        self._seen = {path.name for path in folder.glob("ask-*.json")}  # of before this worker's time
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="profiler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(_JOIN_SECONDS)

    def _watch(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            for ask in sorted(self._folder.glob("ask-*.json")):
                if ask.name not in self._seen:
                    self._seen.add(ask.name)
                    self._answer(ask)

    def _answer(self, ask: Path) -> None:
        number = ask.stem.removeprefix("ask-")
        begun = self._folder / f"{self._worker_id}-{number}.begun"
        begun.touch()
        try:
            seconds = min(float(json.loads(ask.read_text())["seconds"]), _MOST_SECONDS)
            self._trace(seconds, self._folder / f"{self._worker_id}-{number}.json.gz")
        except (OSError, ValueError, KeyError, TypeError, RuntimeError):
            log.warning("no profile for %s", ask.name, exc_info=True)
        finally:
            begun.unlink(missing_ok=True)

    def _trace(self, seconds: float, path: Path) -> None:
        """Device work of all threads and streams; on the CPU, where there is none, what this thread does."""
        on_device = self._device.type == "cuda"
        with profile(activities=[ProfilerActivity.CUDA if on_device else ProfilerActivity.CPU]) as trace:
            time.sleep(seconds)
        trace.export_chrome_trace(str(path))
        log.info("traced %.1f s into %s", seconds, path.name)
