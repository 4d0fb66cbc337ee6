"""Profiles of the server's workers while a workload runs: asked for by a file, as services/profiling.py takes it."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.h200_trace import read_trace, summary
from bench.h200_watch import read_metrics

_SETTLE_SECONDS = 0.5  # from the first request in flight
_LOAD_SECONDS = 60.0  # until there is one
_TRACE_SECONDS = 1.5
_LOOK_SECONDS = 0.1
_BEGIN_SECONDS = 2.0  # until every worker has seen the question
_WAIT_SECONDS = 90.0
_RUNNING = "num_requests_running"
_ASK = "ask-{number}.json"


class Profiles:
    """A folder in which workers look for questions and leave their traces."""

    def __init__(self, folder: Path, enabled: bool) -> None:
        self.enabled = enabled
        self._folder = folder
        self._number = 0
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def environment(self) -> dict[str, str]:
        """What makes a server look into the folder."""
        return {"TRIPTYCH_SERVE_PROFILE_FOLDER": str(self._folder)} if self.enabled else {}

    def take(self, url: str, workload: Callable[[], object]) -> dict[str, Any]:
        """Runs the workload on the server there; what each worker's GPU did for a second and a half, by worker."""
        self._number += 1
        thread = threading.Thread(target=self._ask, args=(url,), daemon=True)
        thread.start()
        workload()
        thread.join()
        time.sleep(_BEGIN_SECONDS)
        return self._collect()

    def _ask(self, url: str) -> None:
        """Once requests are in flight: the load generator takes its time to make them."""
        deadline = time.monotonic() + _LOAD_SECONDS
        while read_metrics(url).get(_RUNNING, 0.0) < 1 and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        time.sleep(_SETTLE_SECONDS)
        unfinished = self._folder / "asking"
        unfinished.write_text(json.dumps({"seconds": _TRACE_SECONDS}))
        unfinished.rename(self._folder / _ASK.format(number=self._number))  # at once whole

    def _collect(self) -> dict[str, Any]:
        """Summaries of the traces, once all workers that have begun one are done with it."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while list(self._folder.glob(f"*-{self._number}.begun")) and time.monotonic() < deadline:
            time.sleep(0.5)
        traces = sorted(self._folder.glob(f"*-{self._number}.json.gz"))
        suffix = f"-{self._number}.json.gz"
        found = {trace.name.removesuffix(suffix): summary(read_trace(trace)) for trace in traces}
        return found or {"nobody": {"why": "no worker left a trace"}}
