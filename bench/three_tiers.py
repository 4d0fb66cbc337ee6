"""Three tiers against one process, side by side on this machine: python -m bench.three_tiers [--rounds 3].

Starts `triptych serve` once for each topology, on free ports of the loopback interface, and sends the same workloads to
one after the other, round by round (A-B-A-B), with seeds that both share. Figures are defined in
triptych/loadgen/measures.py and pooled over the rounds.

It also measures what the router itself costs:

    prepare_seconds         median over requests of what lies between the last byte of the body and the first call to
                            a worker: parse, fetch (of a data URI: decoding base64), hash, sniff, tokenize, layout, as
                            the router reports them in Server-Timing
    cpu_seconds_per_request and per token: CPU time of the router's process (/proc/PID/stat) less what it takes when
                            idle, over batches with 1 and with many output tokens; the slope is the cost of a token,
                            the rest that of a request
"""

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.server import Server
from triptych.client import Client
from triptych.loadgen.bench import run_bench
from triptych.loadgen.measures import Measures, measure
from triptych.loadgen.options import BenchOptions
from triptych.loadgen.provenance import provenance
from triptych.loadgen.samples import Sample
from triptych.loadgen.workload import make_bodies

ROOT = Path(__file__).resolve().parent.parent
ROUTER_STAGES = ("parse", "fetch", "hash", "sniff", "tokenize", "layout")
MANY_TOKENS = 128
# Keeps the embedded model from its seven special tokens, so that every token has text and is streamed.
PLAIN_TEXT = {"logit_bias": {str(token_id): -100 for token_id in range(7)}}
TABLE_WIDTH = 140  # where the output is no terminal

WORKLOADS: Mapping[str, dict[str, Any]] = {
    "text, 32 tokens, 1 in flight": {"images": 0, "text_tokens": 64, "max_tokens": 32, "requests": 12},
    "1 image 224x224, 32 tokens, 1 in flight": {"images": 1, "max_tokens": 32, "requests": 12},
    "4 images 448x448, 1 token, 1 in flight": {
        "images": 4,
        "width": 448,
        "height": 448,
        "max_tokens": 1,
        "requests": 8,
    },
    "2 images 336x336, 32 tokens, 8 in flight": {
        "images": 2,
        "width": 336,
        "height": 336,
        "max_tokens": 32,
        "requests": 24,
        "concurrency": 8,
    },
    "1 image 224x224, 64 tokens, 16 in flight": {"images": 1, "max_tokens": 64, "requests": 48, "concurrency": 16},
    "1 image 224x224, 32 tokens, half repeated, 4 in flight": {
        "images": 1,
        "max_tokens": 32,
        "repeat_share": 0.5,
        "requests": 24,
        "concurrency": 4,
    },
}


def main() -> int:
    arguments = read_arguments()
    console = Console(stderr=True, highlight=False)
    with ExitStack() as stack:
        servers = {}
        for topology in arguments.topologies:
            console.print(f"starting {topology}", style="dim")
            servers[topology] = stack.enter_context(
                Server(topology, arguments.model, arguments.serve, PLAIN_TEXT if arguments.model == "tiny-vl" else {})
            )
        runs = list(interleave(servers, arguments.rounds, arguments.seed, console))
        routers = {topology: router_costs(server, console) for topology, server in servers.items()}
        stages = {topology: median_stages(timelines(server)) for topology, server in servers.items()}
    result = {
        "what": {"script": "bench/three_tiers.py", "model": arguments.model, "rounds": arguments.rounds}
        | {"seed": arguments.seed, "serve_flags": arguments.serve},
        **provenance(),
        "router": routers,
        "timeline_seconds": stages,
        "workloads": dict(pooled(runs)),
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    show(result)
    return 1 if any(run.errors for run in runs) else 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-vl", help="the embedded model, a folder, or a hub id")
    parser.add_argument("--topologies", nargs="+", default=["e+p+d", "epd"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="everything behind it goes to `serve`")
    parser.add_argument("--output", type=Path, default=ROOT / "bench/results/three_tiers.json")
    return parser.parse_args()


@dataclasses.dataclass(frozen=True)
class Run:
    """One round of one workload on one server."""

    topology: str
    workload: str
    options: BenchOptions
    samples: Sequence[Sample]
    measures: Measures

    @property
    def errors(self) -> int:
        return sum(self.measures.errors.values())


def interleave(servers: Mapping[str, Server], rounds: int, seed: int, console: Console) -> Iterator[Run]:
    for number in range(rounds):
        for workload, chosen in WORKLOADS.items():
            for topology, server in servers.items():
                console.print(f"round {number + 1} of {rounds}: {topology}: {workload}", style="dim")
                result = run_bench(
                    BenchOptions(url=server.url, seed=seed + number, extra_body=server.extra_body, **chosen)
                )
                yield Run(topology, workload, result.options, result.samples, result.measures)


def pooled(runs: Sequence[Run]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Workload -> what it is, and for each topology the figures over all rounds, those of each round, the samples."""
    for workload in WORKLOADS:
        entry: dict[str, Any] = {}
        for topology in dict.fromkeys(run.topology for run in runs):
            rounds = [run for run in runs if (run.topology, run.workload) == (topology, workload)]
            samples = [sample for run in rounds for sample in run.samples]
            duration = sum(run.measures.duration_seconds for run in rounds)
            entry[topology] = {
                "measures": dataclasses.asdict(measure(samples, rounds[0].options, duration)),
                "rounds": [dataclasses.asdict(run.measures) for run in rounds],
                "samples": [sample.to_json() for sample in samples],
            }
        yield workload, {"what": rounds[0].options.workload(), **entry}


def timelines(server: Server, requests: int = 24, images: int = 1) -> list[dict[str, float]]:
    """Seconds of each stage as the router reports them, for requests one after the other."""
    client = Client(server.url)
    options = BenchOptions(url=server.url, model=client.first_model(), requests=requests, images=images, seed=1_000_000)
    chats = [json.loads(body) for body in make_bodies(options)]
    asked = [{name: chat[name] for name in chat if not name.startswith("stream")} for chat in chats]
    return [client.ask(body).stages for body in asked]


def median_stages(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {stage: statistics.median(times.get(stage, 0.0) for times in found) for stage in found[-1]}


def router_costs(server: Server, console: Console) -> dict[str, Any]:
    """What one request and one token cost the router; see the top of this file."""
    console.print(f"the router of {server.topology}", style="dim")
    idle = server.router_cpu_share()
    costs: dict[str, Any] = {"idle_cpu_share": idle}
    for name, images in (("text", 0), ("1 image 224x224", 1)):
        few, many = (_cpu_per_request(server, idle, images, tokens) for tokens in (1, MANY_TOKENS))
        per_token = (many - few) / (MANY_TOKENS - 1)
        prepare = [sum(times.get(stage, 0.0) for stage in ROUTER_STAGES) for times in timelines(server, images=images)]
        costs[name] = {
            "prepare_seconds": statistics.median(prepare),
            "cpu_seconds_per_request": few - per_token,
            "cpu_seconds_per_token": per_token,
        }
    return costs


def _cpu_per_request(server: Server, idle: float, images: int, tokens: int) -> float:
    options = BenchOptions(
        url=server.url, requests=96, concurrency=8, images=images, max_tokens=tokens, seed=7 + tokens
    )
    before = server.router_cpu_seconds()
    measures = run_bench(dataclasses.replace(options, warmup=0)).measures
    used = server.router_cpu_seconds() - before
    return (used - idle * measures.duration_seconds) / measures.completed


def show(result: Mapping[str, Any]) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else TABLE_WIDTH)
    table = Table("workload", "topology", "req/s", "images/s", "tok/s", "TTFT p50", "p99", "TPOT p50", "errors")
    for workload, entry in result["workloads"].items():
        for topology, figures in entry.items():
            if topology != "what":
                table.add_row(workload, topology, *_row(figures["measures"]))
        table.add_section()
    console.print(table)
    for topology, costs in result["router"].items():
        for name in ("text", "1 image 224x224"):
            console.print(f"router of {topology}, {name}: {_in_words(costs[name])}")


def _in_words(cost: Mapping[str, float]) -> str:
    return (
        f"{cost['prepare_seconds'] * 1e3:.2f} ms until the first call to a worker, "
        f"{cost['cpu_seconds_per_request'] * 1e3:.2f} ms of CPU a request, "
        f"{cost['cpu_seconds_per_token'] * 1e6:.0f} µs of CPU a token"
    )


def _row(measures: Mapping[str, Any]) -> tuple[str, ...]:
    def point(name: str, percentile: str) -> str:
        figures = measures[name]
        return "-" if figures is None else f"{figures[percentile] * 1000:.1f} ms"

    rates = ("requests_per_second", "images_per_second", "output_tokens_per_second")
    times = (point("ttft_seconds", "p50"), point("ttft_seconds", "p99"), point("tpot_seconds", "p50"))
    return (*(f"{measures[rate]:.2f}" for rate in rates), *times, str(sum(measures["errors"].values())))


if __name__ == "__main__":
    sys.exit(main())
