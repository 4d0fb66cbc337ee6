"""What timelines, lines of logs and traces cost a router: python -m bench.timeline_cost.

Three routers are up at the same time, each a process of its own, before one scripted worker that computes nothing:

    off  measures no stage; its metrics of stages stay empty for it, so what these cost is in the difference, too
    on   as a router is served by default: every request has a timeline, and the latest are kept
    all  a line of JSON for each request, and its spans to a collector, as well

Rounds and ratios are those of bench/metrics_cost.py. The worker tells nothing of its own stages.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.metrics_cost import GOAL_RATIO, cpu_nanoseconds, figures, of, one_round, ratios
from bench.router_cpu import MODEL, _line, _process, scripted_worker
from tests.web import QuietHandler, WebServer
from triptych.loadgen.provenance import provenance
from triptych.loadgen.workload import WARMUP, make_bodies
from triptych.router.__main__ import main as serve_router
from triptych.router.timeline import Timeline

VARIANTS = ("off", "on", "all")


class _Collector(QuietHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.answer(200, {"content-type": "application/json"}, b"{}")


def main() -> int:
    options = read_arguments()
    if options.router:
        measure_nothing() if options.router == "off" else None
        serve_router(["--model", MODEL, "--dtype", "auto", "--worker", options.worker, "--port", "0"])
        return 0
    console = Console(stderr=True, highlight=False)
    cpu: dict[str, list[float]] = {name: [] for name in VARIANTS}
    rates: dict[str, list[float]] = {name: [] for name in VARIANTS}
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        collector = stack.enter_context(WebServer(_Collector))
        worker = stack.enter_context(scripted_worker(options.step_ms))
        routers = {name: stack.enter_context(running(name, worker, collector.url)) for name in VARIANTS}
        for url, _ in routers.values():
            one_round(url, options, options.rounds, make_bodies(of(url, options), WARMUP) * 50)
        for number in range(options.rounds):
            start = number % len(VARIANTS)
            for name in (*VARIANTS[start:], *VARIANTS[:start]):
                url, pid = routers[name]
                before = cpu_nanoseconds(pid)
                rates[name].append(one_round(url, options, number))
                cpu[name].append((cpu_nanoseconds(pid) - before) / 1e9 / options.requests)
            console.print(f"round {number}: " + ", ".join(f"{name} {1e3 * cpu[name][-1]:.3f} ms" for name in VARIANTS))
    report = {
        "what": {key: value for key, value in vars(options).items() if key not in ("output", "router", "worker")},
        "load_average_before": round(load, 1),
        "goal_cpu_ratio": GOAL_RATIO,
        "routers": {name: figures(cpu[name], rates[name]) for name in VARIANTS},
        "ratios": {name: ratios(cpu, rates, name) for name in VARIANTS[1:]},
        **provenance(),
    }
    console.print(json.dumps(report["ratios"], indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200, help="of each round and router")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--step-ms", type=float, default=2.0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--router", choices=VARIANTS, help="be one of the routers")
    parser.add_argument("--worker", default="", help="that it is before")
    return parser.parse_args()


def measure_nothing() -> None:
    """From now on, in this process."""

    def nothing(*_: Any, **__: Any) -> None:
        return None

    for name in ("add", "add_told", "respond", "has_landed", "decodes", "has_decoded"):
        setattr(Timeline, name, nothing)
    Timeline.measure = lambda *_, **__: nullcontext()  # type: ignore[method-assign, assignment]


@contextmanager
def running(name: str, worker: str, collector: str) -> Iterator[tuple[str, int]]:
    """Its URL and process id."""
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
