"""What counting costs a router: the same requests with metrics and without, in turns: python -m bench.metrics_cost.

Three routers are up at the same time, each a process of its own, before one scripted worker that computes nothing:

    off    counts nothing at all: no counter, no histogram, no service levels, no gauges every second
    on     as one router is served
    files  as one of several routers is served, which count in files that all of them read

Every round sends the same requests to each of them, in an order that turns round by round. CPU is that of the router's
process, all its threads. A ratio is of the sums over all rounds; its interval is a bootstrap's over rounds. The
router is all that is busy here, so its share of a server's throughput is at most what is told here: a real server waits
for its models.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.router_cpu import MODEL, _line, _process, scripted_worker, send
from triptych.loadgen.measures import measure
from triptych.loadgen.options import BenchOptions
from triptych.loadgen.provenance import provenance
from triptych.loadgen.samples import judge
from triptych.loadgen.workload import WARMUP, make_bodies
from triptych.metrics import FOLDER_VARIABLE, RouterMetrics
from triptych.router import router_books
from triptych.router.__main__ import main as serve_router
from triptych.router.service_levels import ServiceLevels

GOAL_RATIO = 1.02
VARIANTS = ("off", "on", "files")


def main() -> int:
    options = read_arguments()
    if options.router:
        count_nothing() if options.router == "off" else None
        serve_router(["--model", MODEL, "--dtype", "auto", "--worker", options.worker, "--port", "0"])
        return 0
    console = Console(stderr=True, highlight=False)
    load = os.getloadavg()[0]
    cpu: dict[str, list[float]] = {name: [] for name in VARIANTS}
    rates: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with ExitStack() as stack:
        worker = stack.enter_context(scripted_worker(options.step_ms))
        routers = {name: stack.enter_context(running(name, worker)) for name in VARIANTS}
        for url, _ in routers.values():
            one_round(url, options, options.rounds, make_bodies(of(url, options), WARMUP) * 50)
        for number in range(options.rounds):
            for name in turned(number):
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
def running(name: str, worker: str) -> Iterator[tuple[str, int]]:
    """Its URL and process id."""
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


def of(url: str, options: argparse.Namespace, seed: int = 0) -> BenchOptions:
    return BenchOptions(
        url=url,
        model=MODEL,
        requests=options.requests,
        images=options.images,
        max_tokens=options.max_tokens,
        seed=seed,
        repeat_share=0.5 if options.images else 0.0,
    )


def one_round(url: str, options: argparse.Namespace, seed: int, bodies: Sequence[bytes] = ()) -> float:
    """Answers by the second. Raises RuntimeError where one is missing."""
    bench = of(url, options, seed)
    sent = bodies or make_bodies(bench)
    began = time.perf_counter()
    exchanges = asyncio.run(send(bench, sent, options.concurrency))
    lasted = time.perf_counter() - began
    measures = measure([judge(exchange, began) for exchange in exchanges], bench)
    if measures.completed != len(sent):
        raise RuntimeError(f"only {measures.completed} of {len(sent)} answers: {measures.errors}")
    return len(sent) / lasted


def turned(number: int) -> Sequence[str]:
    """Whoever comes first in one round comes last in the next."""
    start = number % len(VARIANTS)
    order = [*VARIANTS[start:], *VARIANTS[:start]]
    return order if number % 2 == 0 else order[::-1]


def cpu_nanoseconds(pid: int) -> int:
    """What the scheduler has given to all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)


def figures(cpu: Sequence[float], rates: Sequence[float]) -> dict[str, Any]:
    return {
        "cpu_seconds_per_request": round(sum(cpu) / len(cpu), 6),
        "requests_per_second": round(len(rates) / sum(1 / rate for rate in rates), 2),
        "cpu_rounds": [round(value, 6) for value in cpu],
        "rate_rounds": [round(value, 2) for value in rates],
    }


def ratios(cpu: dict[str, list[float]], rates: dict[str, list[float]], name: str) -> dict[str, Any]:
    """With metrics over without; of rates, as time for as many requests."""
    times = {each: [1 / rate for rate in rates[each]] for each in ("off", name)}
    return {"cpu": ratio(cpu[name], cpu["off"]), "time": ratio(times[name], times["off"])}


def ratio(with_metrics: Sequence[float], without: Sequence[float]) -> dict[str, float]:
    chance, count = random.Random(0), len(without)
    drawn = []
    for _ in range(2000):
        rounds = [chance.randrange(count) for _ in range(count)]
        drawn.append(sum(with_metrics[each] for each in rounds) / sum(without[each] for each in rounds))
    drawn.sort()
    whole = sum(with_metrics) / sum(without)
    return {"ratio": round(whole, 4), "low": round(drawn[50], 4), "high": round(drawn[1949], 4)}


if __name__ == "__main__":
    sys.exit(main())
