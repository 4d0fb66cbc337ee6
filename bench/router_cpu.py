"""CPU seconds that a router takes for a request: python -m bench.router_cpu [--against FOLDER].

The router is a process of its own; a scripted worker (bench/scripted_worker.py) and the client are others, so that
nothing but the router's own work is counted: user and system time of all its threads, over all requests of a round,
without the warm-up. Latencies are told too, but on a machine with few cores they are mostly the client's.

    unique    4 images of 1280x720 as JPEG data URIs nobody has sent before, 64 words, 64 tokens streamed, 16 at once
    repeated  the same with the same four images in every request

Unique files are a few pictures with a comment of their own each: a router does not look at pixels.

--against names a folder from which an earlier `triptych` is imported (build/links of another checkout, after `make
links`). Both routers then take the same bodies in turns, so that the machine's mood is theirs alike. The figures are
written with --output, and printed.
"""

import argparse
import asyncio
import base64
import json
import os
import re
import signal
import statistics
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.server import cpu_seconds
from triptych.loadgen.exchange import ChatClient, Exchange, closed_loop
from triptych.loadgen.measures import measure
from triptych.loadgen.options import BenchOptions
from triptych.loadgen.provenance import provenance
from triptych.loadgen.samples import judge
from triptych.loadgen.workload import WORDS, make_jpeg

GOAL_SECONDS = 0.025  # of CPU, for a request of unique images
MODEL = "tiny-vl"
WORKLOADS = ("unique", "repeated")
QUALITY = 92  # files of 250 to 400 KB
NUM_PICTURES = 8


@dataclass
class Router:
    """One of the routers that are compared, over all rounds."""

    name: str
    imports_from: Path | None
    cpu_seconds: dict[str, list[float]] = field(default_factory=dict)  # a request's, of each round, by workload
    ttft_seconds: dict[str, list[float]] = field(default_factory=dict)  # medians of the rounds

    def figures(self, workload: str) -> dict[str, Any]:
        seconds = self.cpu_seconds[workload]
        return {
            "cpu_seconds_per_request": round(statistics.median(seconds), 5),
            "rounds": [round(value, 5) for value in seconds],
            "ttft_seconds_p50": round(statistics.median(self.ttft_seconds[workload]), 4),
        }


def main() -> int:
    options = read_arguments()
    console = Console(stderr=True, highlight=False)
    routers = [Router("now", None)]
    if options.against is not None:
        routers.insert(0, Router("before", options.against.resolve()))
    bodies = Bodies(options)
    with scripted_worker(options.step_ms) as worker:
        for number in range(options.rounds):
            for router in routers:
                run_round(router, worker, bodies, options, number)
                console.print(f"round {number}, {router.name}: {_shown(router)}")
    report = {
        "what": {key: getattr(options, key) for key in ("requests", "rounds", "concurrency", "images", "size")}
        | {key: getattr(options, key) for key in ("text_tokens", "max_tokens", "step_ms")},
        "goal_cpu_seconds": GOAL_SECONDS,
        "routers": {router.name: {name: router.figures(name) for name in options.workloads} for router in routers},
        **provenance(),
    }
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    console.print(_table(routers, options.workloads))
    return 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="import an earlier triptych from here")
    parser.add_argument("--requests", type=int, default=48, help="of each round and workload")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--size", default="1280x720", metavar="WxH")
    parser.add_argument("--text-tokens", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=10.0, help="what the scripted worker takes for a step")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


class Bodies:
    """Request bodies, the same for every router."""

    def __init__(self, options: argparse.Namespace) -> None:
        width, height = map(int, options.size.lower().split("x"))
        self._options = options
        self._pictures = [make_jpeg((7, index), width, height, QUALITY) for index in range(NUM_PICTURES)]

    def of(self, workload: str, number: int) -> list[bytes]:
        """All bodies of one round."""
        return [self._body(workload, number, index) for index in range(self._options.requests)]

    def warm(self) -> list[bytes]:
        return [self._body("unique", -1, index) for index in range(self._options.concurrency)]

    def _body(self, workload: str, number: int, index: int) -> bytes:
        options = self._options
        owner = f"{number} {index}" if workload == "unique" else "all"
        content: list[dict[str, Any]] = []
        for place in range(options.images):
            picture = _with_comment(self._pictures[(index + place) % NUM_PICTURES if owner != "all" else place], owner)
            url = "data:image/jpeg;base64," + base64.b64encode(picture).decode()
            content.append({"type": "image_url", "image_url": {"url": url}})
        words = [WORDS[(index * 7 + place) % len(WORDS)] for place in range(options.text_tokens)]
        content.append({"type": "text", "text": " ".join(words)})
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": options.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(body).encode()


def _with_comment(jpeg: bytes, text: str) -> bytes:
    """The same picture in another file."""
    comment = text.encode()
    return jpeg[:2] + b"\xff\xfe" + struct.pack(">H", len(comment) + 2) + comment + jpeg[2:]


def run_round(router: Router, worker: str, bodies: Bodies, options: argparse.Namespace, number: int) -> None:
    """One round of every workload, with a fresh router."""
    with running_router(worker, router.imports_from) as (url, pid):
        bench = BenchOptions(
            url=url, requests=options.requests, images=options.images, max_tokens=options.max_tokens, warmup=0
        )
        asyncio.run(send(bench, bodies.warm(), options.concurrency))  # connections, first pages: nobody's time
        for name in options.workloads:
            made = bodies.of(name, number)
            before = cpu_seconds(pid)
            exchanges = asyncio.run(send(bench, made, options.concurrency))
            used = cpu_seconds(pid) - before
            origin = min(exchange.sent for exchange in exchanges)
            measures = measure([judge(exchange, origin) for exchange in exchanges], bench)
            if measures.completed != options.requests or measures.short_answers or measures.ttft_seconds is None:
                raise RuntimeError(f"only {measures.completed} of {options.requests} answers: {measures.errors}")
            router.cpu_seconds.setdefault(name, []).append(used / options.requests)
            router.ttft_seconds.setdefault(name, []).append(measures.ttft_seconds["p50"])


async def send(bench: BenchOptions, bodies: Sequence[bytes], concurrency: int) -> list[Exchange]:
    async with ChatClient(bench) as client:
        return await closed_loop(client, bodies, concurrency)


@contextmanager
def scripted_worker(step_ms: float, times: Path | None = None) -> Iterator[str]:
    """Its address. times: where it writes when requests came"""
    words = ["-m", "bench.scripted_worker", "--model", MODEL, "--step-ms", str(step_ms)]
    with _process([*words, *(("--times", str(times)) if times is not None else ())], None) as process:
        yield _line(process, r"(\S+:\d+)")[1]


@contextmanager
def running_router(worker: str, imports_from: Path | None) -> Iterator[tuple[str, int]]:
    """Its URL and process id, once it knows the worker."""
    # -P: what is in the current folder must not come before the triptych that is asked for.
    words = ["-P", "-m", "triptych.router", "--model", MODEL, "--dtype", "auto", "--worker", worker, "--port", "0"]
    with _process(words, imports_from) as process:
        yield _line(process, r"(http://\S+)")[1], process.pid


@contextmanager
def _process(words: list[str], imports_from: Path | None) -> Iterator["subprocess.Popen[str]"]:
    environment = dict(os.environ)
    if imports_from is not None:
        environment["PYTHONPATH"] = str(imports_from)
    if imports_from is None or any(imports_from.glob("triptych/router/**/self_test.py")):
        environment["TRIPTYCH_ROUTER_SELF_TEST"] = "false"  # a scripted worker knows no answers
    command = [sys.executable, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _line(process: "subprocess.Popen[str]", pattern: str) -> re.Match[str]:
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(pattern, line)
        if found is not None:
            return found
    raise RuntimeError(f"{process.args!r} ended before it was ready")


def _shown(router: Router) -> str:
    return ", ".join(f"{name} {values[-1] * 1000:.1f} ms" for name, values in router.cpu_seconds.items())


def _table(routers: list[Router], workloads: list[str]) -> Table:
    table = Table("router", *(f"{name}: CPU ms a request" for name in workloads))
    for router in routers:
        table.add_row(router.name, *(f"{statistics.median(router.cpu_seconds[name]) * 1000:.1f}" for name in workloads))
    return table


if __name__ == "__main__":
    sys.exit(main())
