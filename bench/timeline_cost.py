"""What timelines, lines of logs and traces cost a router: python -m bench.timeline_cost.

Three routers are up at the same time, each a process of its own, before one scripted worker that computes nothing:

    off  measures no stage; its metrics of stages stay empty for it, so what these cost is in the difference, too
    on   as a router is served by default: every request has a timeline, and the latest are kept
    all  a line of JSON for each request, and its spans to a collector, as well

Rounds and ratios are those of bench/routers_in_turns.py. The worker tells nothing of its own stages.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from bench.router_cpu import MODEL, _line, _process, scripted_worker
from bench.routers_in_turns import Router, compare, read_arguments
from tests.web import QuietHandler, WebServer
from triptych.router.__main__ import main as serve_router
from triptych.router.observe.timeline import Timeline

VARIANTS = ("off", "on", "all")


class Collector(QuietHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.answer(200, {"content-type": "application/x-protobuf"}, b"")  # an empty answer: all of it was taken


def main() -> int:
    options = read_arguments(VARIANTS, __doc__)
    if options.router:
        measure_nothing() if options.router == "off" else None
        serve_router(["--model", MODEL, "--dtype", "auto", "--worker", options.worker, "--port", "0"])
        return 0
    with ExitStack() as stack:
        collector = stack.enter_context(WebServer(Collector))
        worker = stack.enter_context(scripted_worker(options.step_ms))
        routers = {name: stack.enter_context(running(name, worker, collector.url)) for name in VARIANTS}
        compare(routers, options)
    return 0


def measure_nothing() -> None:
    """From now on, in this process."""

    def nothing(*_: Any, **__: Any) -> None:
        return None

    for name in ("add", "add_told", "respond", "has_landed", "decodes", "has_decoded"):
        setattr(Timeline, name, nothing)
    Timeline.measure = lambda *_, **__: nullcontext()  # type: ignore[method-assign, assignment]


@contextmanager
def running(name: str, worker: str, collector: str) -> Iterator[Router]:
    told = {"TRIPTYCH_OBSERVE_LOG_FORMAT": "json", "TRIPTYCH_OBSERVE_OTLP_ENDPOINT": collector}
    if name == "all":
        os.environ.update(told)
    process = _process(["-m", "bench.timeline_cost", "--router", name, "--worker", worker], None)
    with process as started:
        for variable in told:
            os.environ.pop(variable, None)
        yield _line(started, r"(http://\S+)")[1], started.pid


if __name__ == "__main__":
    sys.exit(main())
