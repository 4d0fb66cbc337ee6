"""Several routers that are up at the same time and get requests in turns: what one costs more than another.

Every round sends as many requests of the same kind to each of them, in an order that turns round by round. CPU is that
of the router's process, all its threads. A ratio is of the sums over all rounds; its interval is a bootstrap's over
rounds.
"""

import argparse
import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.router_cpu import MODEL, send
from triptych.loadgen.measures import measure
from triptych.loadgen.options import BenchOptions
from triptych.loadgen.provenance import provenance
from triptych.loadgen.samples import judge
from triptych.loadgen.workload import WARMUP, make_bodies

GOAL_RATIO = 1.02
_WARMUP_REQUESTS = 10

Router = tuple[str, int]  # its URL and process id


def compare(
    routers: Mapping[str, Router],
    options: argparse.Namespace,
    beside: Callable[[str, str], AbstractContextManager[Any]] = lambda name, url: nullcontext(),
) -> None:
    """The first of them is what the others are compared with. Prints each round, and writes `options.output`.

    beside: what goes on while a router of this name, at this URL, has its turn
    """
    console = Console(stderr=True, highlight=False)
    load = os.getloadavg()[0]
    cpu: dict[str, list[float]] = {name: [] for name in routers}
    rates: dict[str, list[float]] = {name: [] for name in routers}
    for url, _ in routers.values():
        one_round(url, options, 0, make_bodies(of(url, options), WARMUP) * options.warmup)
    for number in range(options.rounds):
        for place, name in enumerate(turned(list(routers), number)):
            url, pid = routers[name]
            before = cpu_nanoseconds(pid)
            with beside(name, url):
                # Never what workers have seen before: whoever came first would compute what the others find in caches.
                rates[name].append(one_round(url, options, number * len(routers) + place))
            cpu[name].append((cpu_nanoseconds(pid) - before) / 1e9 / options.requests)
        told = (f"{name} {1e3 * cpu[name][-1]:.3f} ms, {rates[name][-1]:.2f} req/s" for name in routers)
        console.print(f"round {number}: " + "; ".join(told))
    first, *others = routers
    report = {
        "what": {key: value for key, value in vars(options).items() if key not in ("output", "router", "worker")},
        "load_average_before": round(load, 1),
        "goal_ratio": GOAL_RATIO,
        "routers": {name: figures(cpu[name], rates[name]) for name in routers},
        "ratios": {name: ratios(cpu, rates, name, first) for name in others},
        **provenance(),
    }
    console.print(json.dumps(report["ratios"], indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=1) + "\n")


def read_arguments(variants: Sequence[str], what: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200, help="of each round and router")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--step-ms", type=float, default=2.0)
    parser.add_argument(
        "--warmup",
        type=int,
        default=50,
        help=f"how often its {_WARMUP_REQUESTS} requests are sent before the first round",
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--router", choices=variants, help="be one of the routers")
    parser.add_argument("--worker", default="", help="that it is before")
    return parser.parse_args()


def of(url: str, options: argparse.Namespace, seed: int = 0) -> BenchOptions:
    return BenchOptions(
        url=url,
        model=MODEL,
        requests=options.requests,
        images=options.images,
        max_tokens=options.max_tokens,
        seed=seed,
        warmup=_WARMUP_REQUESTS,
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


def turned(names: Sequence[str], number: int) -> Sequence[str]:
    """Whoever comes first in one round comes last in the next."""
    start = number % len(names)
    order = [*names[start:], *names[:start]]
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


def ratios(cpu: dict[str, list[float]], rates: dict[str, list[float]], name: str, first: str) -> dict[str, Any]:
    """One over the first; of rates, as time for as many requests."""
    times = {each: [1 / rate for rate in rates[each]] for each in (first, name)}
    return {"cpu": ratio(cpu[name], cpu[first]), "time": ratio(times[name], times[first])}


def ratio(values: Sequence[float], of_first: Sequence[float]) -> dict[str, float]:
    chance, count = random.Random(0), len(of_first)
    drawn = []
    for _ in range(2000):
        rounds = [chance.randrange(count) for _ in range(count)]
        drawn.append(sum(values[each] for each in rounds) / sum(of_first[each] for each in rounds))
    drawn.sort()
    whole = sum(values) / sum(of_first)
    return {"ratio": round(whole, 4), "low": round(drawn[50], 4), "high": round(drawn[1949], 4)}
