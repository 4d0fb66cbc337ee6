"""Triptych and a peer side by side on this machine's CPU: the same checkpoint, the same requests, one run.

    python -m bench.peer_cpu --mmbench MMBENCH.PY --peer 'COMMAND {model} {port}'

The peer is any OpenAI-compatible server that COMMAND starts in the foreground for the model in a folder, under the name
`m`, on a port of the loopback interface; ours are `triptych serve` in the topologies asked for. All servers are started
once and held (SIGSTOP) but for the one that is measured, so that they never compute at the same time and yet alternate
within seconds: what else the machine does meets all of them alike. Each round measures every workload on every server,
beginning with another one. Requests are made and timed by MMBENCH.PY (`mmbench.py run`), which is no part of this
repository, and whose definitions of TTFT and TPOT are in its docstring; servers and client have the same niceness.

Written to bench/results/peer-cpu.json:

    servers.NAME.WORKLOAD   over all rounds: req/s, TTFT and TPOT p50 in seconds (medians of the rounds' figures), CPU
                            seconds of all the server's processes per request, each round's figures, every request
    ratios.NAME.WORKLOAD    ours over the peer's, of the medians; `rounds`: of each round; `holds`: within the goals,
                            which are TTFT <= 0.8 of the peer's, and req/s >= 1.2 in one process and >= 1.0 in three
"""

import argparse
import dataclasses
import json
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import httpx
from rich.console import Console
from rich.table import Table

from bench.process_tree import ProcessTree
from triptych.loadgen.provenance import provenance

ROOT = Path(__file__).resolve().parent.parent
EMBEDDED = ROOT / "triptych/models/tiny_vl"
MODEL_NAME = "m"
PEER = "peer"
SEED = 600

# Arguments of mmbench, and how many requests a round sends.
WORKLOADS: Mapping[str, tuple[str, int]] = {
    "1 image 448x448, 1 token, 1 in flight": ("--images 1 --size 448x448 --max-tokens 1 --concurrency 1", 12),
    "4 images 448x448, 1 token, 1 in flight": ("--images 4 --size 448x448 --max-tokens 1 --concurrency 1", 6),
    "2 images 336x336, 32 tokens, 8 in flight": ("--images 2 --size 336x336 --max-tokens 32 --concurrency 8", 24),
    "1 image 224x224, 64 tokens, 16 in flight": ("--images 1 --size 224x224 --max-tokens 64 --concurrency 16", 48),
}

MOST_TTFT = 0.8  # of the peer's
LEAST_RATE = {"epd": 1.2, "e+p+d": 1.0}  # of the peer's
START_SECONDS = 900.0
RUN_SECONDS = 600.0


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one round of one workload on one server came to."""

    requests_per_second: float
    ttft_p50_seconds: float
    tpot_p50_seconds: float | None  # of one token there is none
    cpu_seconds_per_request: float
    failed: int  # and those with another number of tokens than asked for
    samples: Sequence[Mapping[str, Any]]


class Candidate:
    """A server that runs; held whenever nobody measures it."""

    def __init__(self, name: str, port: int, tree: ProcessTree) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.tree = tree

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if not self.tree.runs:
                raise RuntimeError(f"{self.name} ended before it was ready; see its log")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} was not ready after {START_SECONDS:g} s")
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", trust_env=False, timeout=5.0).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def measure(self, mmbench: Path, arguments: str, requests: int, seed: int) -> Figures:
        """The workload, with this server alone going on."""
        self.tree.go_on()
        try:
            # The first one finds a server that has just woken up; nobody times it.
            run_mmbench(mmbench, self.url, arguments, requests=2, seed=seed + 1_000_000)
            before = self.tree.cpu_seconds()
            found = run_mmbench(mmbench, self.url, arguments, requests, seed)
            used = self.tree.cpu_seconds() - before
        finally:
            self.tree.hold()
        return figures_of(found, used)


def main() -> int:
    arguments = read_arguments()
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell had the first ignored: servers must not stay
        signal.signal(number, signal.default_int_handler)
    console = Console(stderr=True, highlight=False)
    logs = Path(tempfile.mkdtemp(prefix="peer-cpu-"))
    console.print(f"logs of the servers: {logs}", style="dim")
    with ExitStack() as stack:
        candidates = [start(stack, name, command, logs, console) for name, command in commands(arguments).items()]
        measured = run_rounds(candidates, arguments, console)
    result = {
        "what": {"script": "bench/peer_cpu.py", "rounds": arguments.rounds, "seed": SEED}
        | {"model": arguments.model.name, "dtype": "float32", "peer": arguments.peer_says},
        **provenance(),
        "servers": {name: {work: pooled(rounds) for work, rounds in found.items()} for name, found in measured.items()},
        "ratios": {name: ratios(name, found, measured[PEER]) for name, found in measured.items() if name != PEER},
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    show(result)
    failed = sum(each.failed for found in measured.values() for rounds in found.values() for each in rounds)
    return 1 if failed else 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mmbench", type=Path, required=True, help="the load generator's file")
    parser.add_argument("--peer", required=True, help="command that serves {model} on {port}; quoted as for a shell")
    parser.add_argument("--peer-says", default="", help="what the peer is, in words, for the result file")
    parser.add_argument("--model", type=Path, default=EMBEDDED, help="the checkpoint's folder (default: embedded)")
    parser.add_argument("--topologies", nargs="+", default=["epd", "e+p+d"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", type=int, help="numbers of workloads, from 1 (default: all)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of requests")
    parser.add_argument("--output", type=Path, default=ROOT / "bench/results/peer-cpu.json")
    return parser.parse_args()


def commands(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """By name; ports are still to be put in."""
    ours = [sys.executable, "-m", "triptych.cli", "serve", "{model}", "--served-name", MODEL_NAME, "--port", "{port}"]
    ours += ["--device", "cpu", "--dtype", "float32"]
    found = {PEER: shlex.split(arguments.peer)}
    found |= {topology: [*ours, "--topology", topology] for topology in arguments.topologies}
    model = str(arguments.model.resolve())
    return {name: [part.replace("{model}", model) for part in command] for name, command in found.items()}


def start(stack: ExitStack, name: str, command: Sequence[str], logs: Path, console: Console) -> Candidate:
    console.print(f"starting {name}", style="dim")
    began, port = time.monotonic(), free_port()
    log: IO[str] = stack.enter_context((logs / f"{name}.log").open("w"))
    # A Ray of its own: it must not go away with another server's.
    tree = ProcessTree([part.replace("{port}", str(port)) for part in command], log, {"TRIPTYCH_SERVE_RAY": "local"})
    candidate = Candidate(name, port, stack.enter_context(tree))
    candidate.wait_ready()
    console.print(f"{name} is ready after {time.monotonic() - began:.0f} s", style="dim")
    candidate.tree.hold()
    return candidate


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


Measured = dict[str, dict[str, list[Figures]]]  # server -> workload -> rounds


def run_rounds(candidates: Sequence[Candidate], arguments: argparse.Namespace, console: Console) -> Measured:
    chosen = [work for at, work in enumerate(WORKLOADS, 1) if arguments.only is None or at in arguments.only]
    measured: Measured = {each.name: {work: [] for work in chosen} for each in candidates}
    for number in range(arguments.rounds):
        first = number % len(candidates)
        for work in chosen:
            flags, requests = WORKLOADS[work]
            for each in [*candidates[first:], *candidates[:first]]:
                console.print(f"round {number + 1} of {arguments.rounds}: {each.name}: {work}", style="dim")
                requested = max(1, round(requests * arguments.scale))
                measured[each.name][work].append(each.measure(arguments.mmbench, flags, requested, SEED + number))
    return measured


def run_mmbench(mmbench: Path, url: str, arguments: str, requests: int, seed: int) -> dict[str, Any]:
    """What mmbench writes of the run."""
    command = [sys.executable, str(mmbench), "run", "--url", url, "--model", MODEL_NAME, *arguments.split()]
    command += ["--requests", str(requests), "--seed", str(seed), "--workers", "1", "--raw"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS)
    if done.returncode:
        raise RuntimeError(f"mmbench ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    if "req_per_s" not in found:
        raise RuntimeError(f"no request to {url} succeeded: {found['error_samples']}")
    return found


def figures_of(found: Mapping[str, Any], cpu_seconds: float) -> Figures:
    tpot = found["tpot_ms"]["p50"]
    return Figures(
        requests_per_second=found["req_per_s"],
        ttft_p50_seconds=found["ttft_s"]["p50"],
        tpot_p50_seconds=None if tpot is None else tpot / 1e3,
        cpu_seconds_per_request=cpu_seconds / found["workload"]["requests"],
        failed=found["errors"] + found["short_replies"],
        samples=found["raw"],
    )


NUMBERS = ("requests_per_second", "ttft_p50_seconds", "tpot_p50_seconds", "cpu_seconds_per_request")


def pooled(rounds: Sequence[Figures]) -> dict[str, Any]:
    """Medians over the rounds, then the rounds."""
    return {name: median_of(rounds, name) for name in NUMBERS} | {
        "failed": sum(each.failed for each in rounds),
        "rounds": [dataclasses.asdict(each) for each in rounds],
    }


def median_of(rounds: Sequence[Figures], name: str) -> float | None:
    known = [value for value in (getattr(each, name) for each in rounds) if value is not None]
    return statistics.median(known) if known else None


def ratios(
    topology: str, ours: Mapping[str, Sequence[Figures]], peers: Mapping[str, Sequence[Figures]]
) -> dict[str, Any]:
    """Workload -> ours over the peer's; below 1 is better for times and CPU, above 1 for rates."""
    return {work: ratio(ours[work], peers[work], LEAST_RATE.get(topology, 1.0)) for work in ours}


def ratio(ours: Sequence[Figures], peers: Sequence[Figures], least_rate: float) -> dict[str, Any]:
    found: dict[str, Any] = {name: _over(median_of(ours, name), median_of(peers, name)) for name in NUMBERS}
    found["rounds"] = [
        {name: _over(getattr(own, name), getattr(peer, name)) for name in NUMBERS}
        for own, peer in zip(ours, peers, strict=True)
    ]
    found["holds"] = found["ttft_p50_seconds"] <= MOST_TTFT and found["requests_per_second"] >= least_rate
    return found


def _over(own: float | None, peer: float | None) -> float | None:
    return None if own is None or not peer else round(own / peer, 3)


def show(result: Mapping[str, Any]) -> None:
    table = Table("workload", "server", "req/s", "TTFT p50", "TPOT p50", "CPU-s a request", "rate", "TTFT", "goals")
    for work in result["servers"][PEER]:
        for name, found in result["servers"].items():
            table.add_row(work, name, *_row(found[work], result["ratios"].get(name, {}).get(work)))
        table.add_section()
    Console(highlight=False, width=None if sys.stdout.isatty() else 150).print(table)


def _row(found: Mapping[str, Any], over: Mapping[str, Any] | None) -> tuple[str, ...]:
    tpot = found["tpot_p50_seconds"]
    figures = (
        f"{found['requests_per_second']:.2f}",
        f"{found['ttft_p50_seconds'] * 1e3:.0f} ms",
        "-" if tpot is None else f"{tpot * 1e3:.1f} ms",
        f"{found['cpu_seconds_per_request']:.3f}",
    )
    if over is None:
        return (*figures, "", "", "")
    rate, first = over["requests_per_second"], over["ttft_p50_seconds"]
    return (*figures, f"{rate:.2f} x", f"{first:.2f} x", "held" if over["holds"] else "missed")


if __name__ == "__main__":
    sys.exit(main())
