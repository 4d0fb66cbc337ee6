"""Profiles of the server's workers while a workload runs: asked for by a file, as services/profiling.py takes it."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.h200_trace import read_trace, summary

_DELAY_SECONDS = 3.0  # into the workload, past the load generator's own start
_TRACE_SECONDS = 1.5
_WAIT_SECONDS = 90.0
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

    def take(self, workload: Callable[[], object]) -> dict[str, Any]:
        """Runs the workload; what each worker's GPU did for a second and a half of it, by worker."""
        self._number += 1
        thread = threading.Thread(target=self._ask, daemon=True)
        thread.start()
        workload()
        thread.join()
        return self._collect()

    def _ask(self) -> None:
        time.sleep(_DELAY_SECONDS)
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
