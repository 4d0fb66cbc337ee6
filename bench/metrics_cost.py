"""What counting costs a router: the same requests with metrics and without, in turns: python -m bench.metrics_cost.

Three routers are up at the same time, each a process of its own, before one scripted worker that computes nothing:

    off    counts nothing at all: no counter, no histogram, no service levels, no gauges every second
    on     as one router is served
    files  as one of several routers is served, which count in files that all of them read

bench/routers_in_turns.py says how they are compared. The router is all that is busy here, so its share of a server's
throughput is at most what is told here: a real server waits for its models.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from bench.router_cpu import MODEL, _line, _process, scripted_worker
from bench.routers_in_turns import Router, compare, read_arguments
from triptych.metrics import FOLDER_VARIABLE, RouterMetrics
from triptych.router.__main__ import main as serve_router
from triptych.router.observe import router_books
from triptych.router.observe.service_levels import ServiceLevels

VARIANTS = ("off", "on", "files")


def main() -> int:
    options = read_arguments(VARIANTS, __doc__)
    if options.router:
        count_nothing() if options.router == "off" else None
        serve_router(["--model", MODEL, "--dtype", "auto", "--worker", options.worker, "--port", "0"])
        return 0
    with ExitStack() as stack:
        worker = stack.enter_context(scripted_worker(options.step_ms))
        compare({name: stack.enter_context(running(name, worker)) for name in VARIANTS}, options)
    return 0


def count_nothing() -> None:
    """From now on, in this process. What asks for a number still gets one; nobody writes it down."""

    def nothing(*_: Any, **__: Any) -> None:
        return None

    for kind, names in (
        (RouterMetrics, ("count", "set", "observe")),
        (ServiceLevels, ("answered", "failed", "refresh")),
        (router_books, ("observe_start", "observe_end")),
        (router_books.RouterBooks, ("refresh",)),
    ):
        for name in names:
            setattr(kind, name, nothing)


@contextmanager
def running(name: str, worker: str) -> Iterator[Router]:
    with tempfile.TemporaryDirectory() as folder:
        if name == "files":
            os.environ[FOLDER_VARIABLE] = folder
        try:
            process = _process(["-m", "bench.metrics_cost", "--router", name, "--worker", worker], None)
            with process as started:
                os.environ.pop(FOLDER_VARIABLE, None)
                yield _line(started, r"(http://\S+)")[1], started.pid
        finally:
            os.environ.pop(FOLDER_VARIABLE, None)


if __name__ == "__main__":
    sys.exit(main())
