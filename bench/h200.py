"""Triptych on one H200 under the workloads of the goals' table: bench/h200.sh --mmbench PATH [--only start,w1,w3].

Makes a model folder with the numbers of Qwen2.5-VL-7B and no weights (tools/make_geometry.py), starts `triptych serve
FOLDER --load-format dummy` with bench/h200.toml, waits until it is healthy, and runs each part of bench/h200_work.py by
the independent load generator whose path --mmbench names. Prints ours beside the goals and vLLM's figures on the same
card, and writes bench/results/h200-<topology>.json with every request's sample.

In parts: the result file keeps what is there, a part that it has is not run again (unless --again), and with --limit no
part begins that would not end in time. So several calls, each as short as need be, give one result.

start    seconds from the command to the first healthy answer. Cold: every cache of compiled kernels is an empty folder.
router   CPU seconds of the router's process over the runs of a part, less what it takes when idle in the time the load
         generator prepares, by request.
profile  where a goal is missed on a GPU, the part runs once more, for the kernels' times and the gaps between them.

--dry-run does all of it on a CPU with a tiny model and next to nothing to do; its result goes to build/h200.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.h200_profile import Profiles
from bench.h200_table import missed, show
from bench.h200_watch import GpuWatch, changes, cpu_seconds_by_process, differences, read_metrics
from bench.h200_work import START, TOPOLOGIES, Part, chosen, dry, means
from bench.server import Server
from tools.make_geometry import make_geometry
from triptych.loadgen.provenance import provenance

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build/h200"
SETTINGS = ROOT / "bench/h200.toml"
NAME = "qwen2.5-vl-7b"
CACHE_VARIABLES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "FLASHINFER_WORKSPACE_BASE")
MOST_BYTES = 1_000_000  # of a result, which is kept in the repository
_PART_SECONDS = 400.0
_SETTLE_SECONDS = 1.0  # until the router has asked the workers for their gauges once more


def main() -> int:
    arguments = read_arguments()
    bench = Bench(arguments, Console(stderr=True, highlight=False))
    if not arguments.show:
        bench.run()
    found = bench.result
    show(found)
    return 1 if missed(found) or found.get("failed") else 0


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mmbench", type=Path, help="the load generator's script")
    parser.add_argument("--topology", choices=TOPOLOGIES, default="epd")
    parser.add_argument("--only", default="", help="some parts, as start,w1,w3 or w1-4 (default: all)")
    parser.add_argument("--again", action="store_true", help="also run parts that the result has")
    parser.add_argument("--limit", type=float, default=570.0, help="seconds in which all must have ended")
    parser.add_argument("--no-profile", action="store_true", help="do not run a missed part once more to profile it")
    parser.add_argument("--dry-run", action="store_true", help="a tiny model on the CPU, little to do")
    parser.add_argument("--show", action="store_true", help="print what the result file has, run nothing")
    parser.add_argument("--output", type=Path, help="default: bench/results/h200-<topology>.json")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="everything behind it goes to `serve`")
    arguments = parser.parse_args(words)
    if not arguments.show and (arguments.mmbench is None or not arguments.mmbench.is_file()):
        parser.error(f"--mmbench is {arguments.mmbench}, expected the path of the load generator")
    if arguments.output is None:
        folder = WORK if arguments.dry_run else ROOT / "bench/results"
        arguments.output = folder / f"h200-{arguments.topology.replace('+', '-')}.json"
    return arguments


class Bench:
    """One topology's result, and the calls that fill it."""

    def __init__(self, arguments: argparse.Namespace, console: Console) -> None:
        self._arguments = arguments
        self._console = console
        self._began = time.monotonic()
        self.result: dict[str, Any] = {"topology": arguments.topology, "parts": {}}
        if arguments.output.is_file() and not (arguments.dry_run and not arguments.show):
            self.result |= json.loads(arguments.output.read_text())
        self.result.pop("failed", None)
        if arguments.dry_run:
            self.result["dry_run"] = True

    def run(self) -> None:
        wanted, start = self._wanted()
        if not wanted and not start:
            self._say("nothing to do: the result has every part; --again runs them once more")
            return
        WORK.mkdir(parents=True, exist_ok=True)
        folder = WORK / ("tiny" if self._arguments.dry_run else NAME)
        make_geometry(folder, "tiny" if self._arguments.dry_run else NAME)
        caches = WORK / (f"caches-{time.time_ns()}" if start else "caches")
        profiles = Profiles(WORK / "profiles", enabled=not self._arguments.no_profile)
        log = WORK / f"serve-{self._arguments.topology}.log"
        self._say(f"starting {self._arguments.topology}" + (", with empty caches" if start else ""))
        with Server(
            self._arguments.topology, str(folder), self._flags(), environment=_environment(caches, profiles), log=log
        ) as server:
            self._started(server, cold=start)
            for part in wanted:
                if not self._fits(part):
                    continue
                try:
                    self._part(server, part, profiles)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    self._failed(part, error, server)

    def _wanted(self) -> tuple[list[Part], bool]:
        """Parts to run, and whether a cold start is one of them."""
        names = self._arguments.only.split(",")
        has: Mapping[str, Any] = {} if self._arguments.again else self.result["parts"]
        parts = [part for part in chosen(self._arguments.only) if part.name not in has]
        if names == [START]:
            parts = []
        start = (not self._arguments.only or START in names) and START not in has
        return [dry(part) for part in parts] if self._arguments.dry_run else parts, start

    def _flags(self) -> list[str]:
        device = "cpu" if self._arguments.dry_run else "cuda"
        settings = [] if self._arguments.dry_run else ["--config", str(SETTINGS)]
        return ["--load-format", "dummy", "--served-name", NAME, "--device", device, *settings, *self._arguments.serve]

    def _started(self, server: Server, cold: bool) -> None:
        seconds = server.seconds_to_ready
        self._say(f"ready after {seconds:.1f} s")
        if cold:
            log = [line for line in server.log_tail(100_000).splitlines() if "ready" in line or " s" in line]
            self._keep(START, {"seconds": round(seconds, 2), "log": log[-60:]})
        else:
            self.result["warm_start_seconds"] = round(seconds, 2)

    def _fits(self, part: Part, doing: str = "") -> bool:
        left = float(self._arguments.limit) - (time.monotonic() - self._began)
        if left >= part.expected_seconds:
            return True
        self._say(f"no time for {doing}{part.name}: {left:.0f} s are left, and it may take {part.expected_seconds:g} s")
        return False

    def _part(self, server: Server, part: Part, profiles: Profiles) -> None:
        runs = []
        idle = server.router_cpu_share(3.0) if part.counts_router else 0.0
        for seed in part.seeds:
            self._say(f"{part.name} ({part.what}), seed {seed}")
            runs.append(self._run(server, part, seed, idle))
            self._say(_in_a_line(runs[-1]))
        self._keep(part.name, {"what": part.what, "means": means(runs), "runs": runs})
        if profiles.enabled and part.name in missed(self.result) and self._fits(part, "a profile of "):
            self._say(f"a goal of {part.name} is missed: profiling it")
            entry = self.result["parts"][part.name]
            more = () if self._arguments.dry_run else part.profiled
            found = profiles.take(server.url, lambda: self._mmbench(server, part, part.seeds[0], more))
            self._keep(part.name, entry | {"profile": found})

    def _run(self, server: Server, part: Part, seed: int, idle: float) -> dict[str, Any]:
        """One run's figures, and what was seen beside it."""
        cpu, router, metrics = cpu_seconds_by_process(server.pid), server.router_cpu_seconds(), read_metrics(server.url)
        began = time.monotonic()
        with GpuWatch() as gpu:
            found = self._mmbench(server, part, seed)
        wall = time.monotonic() - began
        if "duration_s" not in found:
            raise RuntimeError(f"every request failed: {found.get('error_samples')}")
        used = server.router_cpu_seconds() - router - idle * max(0.0, wall - found["duration_s"])
        seconds = differences(cpu, cpu_seconds_by_process(server.pid))
        time.sleep(_SETTLE_SECONDS)
        answered = found["workload"]["requests"] - found["errors"]
        return found | {
            "router_cpu_per_request": round(used / max(1, answered), 5),
            "gpu": gpu.summary(),
            "cpu_seconds": seconds,
            "metrics": changes(metrics, read_metrics(server.url)),
        }

    def _mmbench(self, server: Server, part: Part, seed: int, more: Sequence[str] = ()) -> dict[str, Any]:
        """What the load generator prints; more: arguments behind its own. Raises RuntimeError where it fails."""
        command = [sys.executable, str(self._arguments.mmbench), *part.command(self._arguments.topology, seed), *more]
        command += ["--url", server.url, "--model", NAME, "--label", part.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PART_SECONDS)
        if done.returncode:
            raise RuntimeError(f"{part.name} ended with status {done.returncode}: {done.stderr[-1500:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _failed(self, part: Part, error: Exception, server: Server) -> None:
        self._say(f"{part.name} failed: {error}")
        self.result.setdefault("failed", {})[part.name] = {"error": str(error)[-2000:], "log": server.log_tail()}
        self._write()

    def _keep(self, name: str, entry: Mapping[str, Any]) -> None:
        self.result["what"] = {"script": "bench/h200.sh", "serve_flags": self._flags()[:2] + self._arguments.serve}
        self.result["parts"][name] = {**provenance(), **entry}
        self._write()

    def _write(self) -> None:
        text = json.dumps(self.result, indent=1) + "\n"
        assert len(text) < MOST_BYTES, f"the result would have {len(text)} bytes, expected less than {MOST_BYTES}"
        self._arguments.output.parent.mkdir(parents=True, exist_ok=True)
        self._arguments.output.write_text(text)

    def _say(self, text: str) -> None:
        self._console.print(f"{time.monotonic() - self._began:6.1f} s: {text}", style="dim")


def _environment(caches: Path, profiles: Profiles) -> dict[str, str]:
    variables = {name: str(caches / name.lower()) for name in CACHE_VARIABLES}
    return variables | profiles.environment()


def _in_a_line(run: Mapping[str, Any]) -> str:
    ttft, tpot = run["ttft_s"]["p50"], run["tpot_ms"]["p90"]
    rates = f"{run['req_per_s']:.2f} req/s, {run['output_tok_per_s']:.0f} tok/s"
    bad = f", {run['errors']} errors, {run['short_replies']} short" if run["errors"] or run["short_replies"] else ""
    realised = f", arrivals {run['realized_rate']:.2f}/s" if "realized_rate" in run else ""
    attained = f", attained {run['slo']['attainment']:.3f}" if "slo" in run else ""
    return f"  {rates}, TTFT p50 {ttft * 1e3:.0f} ms, TPOT p90 {tpot or 0:.1f} ms{realised}{attained}{bad}"


if __name__ == "__main__":
    raise SystemExit(main())
