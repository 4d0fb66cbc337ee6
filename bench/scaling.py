"""How cost grows with work on a running server: python -m bench.scaling [--only images,prompt,batch] [--dry-run].

Starts `triptych serve` on a model without weights (tools/make_geometry.py) and asks for more and more of one thing:

    images   1 to 32 images of 1280x720 in a prompt, one token of answer, one request at a time: TTFT by images
    prompt   256 to 32 k tokens of text, one token of answer, one request at a time: TTFT by tokens
    batch    1 to 256 requests at once, 256 tokens of text, 128 of answer: TPOT and tokens per second by requests

Each table has the cost of one more unit between two lines, and the floor of bench/roofline_work.py with what it is made
of, so that it says where cost stops being linear and why. Figures are medians by triptych/loadgen/measures.py; a line
that was not answered in full is marked. Fills bench/README.md and writes bench/results/scaling-h200.json, line by line:
a run that is cut off leaves what it has, and goes on from there.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.pages import PAGE, fill
from bench.scaling_tables import TABLES, lines
from bench.server import Server
from tools.make_geometry import make_geometry
from triptych.loadgen.bench import run_bench
from triptych.loadgen.options import BenchOptions
from triptych.loadgen.provenance import provenance

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build/h200"
MODEL = "qwen2.5-vl-7b"
AMOUNTS: Mapping[str, Sequence[int]] = {
    "images": (1, 2, 4, 8, 16, 32),
    "prompt": (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_000),
    "batch": (1, 2, 4, 8, 16, 32, 64, 128, 256),
}
DRY_AMOUNTS: Mapping[str, Sequence[int]] = {"images": (1, 2), "prompt": (16, 64), "batch": (1, 3)}
ENVIRONMENT = {"TRIPTYCH_LANGUAGE_MAX_SEQUENCES": "256"}


def main() -> int:
    arguments = read_arguments()
    result: dict[str, Any] = {"what": "bench/scaling.py", "tables": {name: {} for name in AMOUNTS}}
    if arguments.output.is_file() and not arguments.dry_run:
        result |= json.loads(arguments.output.read_text())
    if not arguments.table:
        measure(arguments, result)
    for name in TABLES:
        shown = lines(name, result["tables"].get(name, {}))
        print("\n".join(shown))
        if not arguments.dry_run:
            fill(PAGE, f"scaling {name}", shown)
    entries = [entry for table in result["tables"].values() for entry in table.values()]
    return 1 if any(entry["errors"] or entry["short_answers"] for entry in entries) else 0


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(AMOUNTS), help="some of images, prompt, batch")
    parser.add_argument("--again", action="store_true", help="also measure lines that the result has")
    parser.add_argument("--limit", type=float, default=570.0, help="seconds after which no further line begins")
    parser.add_argument("--dry-run", action="store_true", help="a tiny model on the CPU; the page stays as it is")
    parser.add_argument("--table", action="store_true", help="measure nothing, fill the page from the result")
    parser.add_argument("--output", type=Path, help="default: bench/results/scaling-h200.json, of --dry-run in build/")
    arguments = parser.parse_args(words)
    unknown = set(arguments.only.split(",")) - AMOUNTS.keys()
    if unknown:
        parser.error(f"--only has {sorted(unknown)}, expected some of {', '.join(AMOUNTS)}")
    if arguments.output is None:
        arguments.output = (WORK if arguments.dry_run else ROOT / "bench/results") / "scaling-h200.json"
    return arguments


def measure(arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    """Adds the lines that are missing to the result, and writes it after each."""
    began, console = time.monotonic(), Console(stderr=True, highlight=False)
    missing = list(_missing(arguments, result))
    if not missing:
        return
    geometry = "tiny" if arguments.dry_run else MODEL
    folder = WORK / geometry
    make_geometry(folder, geometry)
    flags = ["--load-format", "dummy", "--device", "cpu" if arguments.dry_run else "cuda"]
    if not arguments.dry_run:
        flags += ["--config", str(ROOT / "bench/h200.toml")]
    with Server("epd", str(folder), flags, environment=ENVIRONMENT, log=WORK / "serve-scaling.log") as server:
        for name, amount in missing:
            if time.monotonic() - began > arguments.limit:
                console.print("the time is up; the same command goes on from here", style="dim")
                return
            console.print(f"{time.monotonic() - began:6.1f} s: {name} {amount}", style="dim")
            result |= provenance()
            result["tables"].setdefault(name, {})[str(amount)] = one_line(server, name, amount, arguments.dry_run)
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def _missing(arguments: argparse.Namespace, result: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    amounts = DRY_AMOUNTS if arguments.dry_run else AMOUNTS
    for name in arguments.only.split(","):
        for amount in amounts[name]:
            if arguments.again or str(amount) not in result["tables"].get(name, {}):
                yield name, amount


def one_line(server: Server, name: str, amount: int, dry_run: bool) -> dict[str, Any]:
    """The figures of one amount, as JSON."""
    found = run_bench(options(server.url, name, amount, dry_run))
    measures = dataclasses.asdict(found.measures)
    prompt = [sample.prompt_tokens for sample in found.samples if not sample.error]
    return {
        "prompt_tokens": sum(prompt) / max(1, len(prompt)),
        "errors": sum(found.measures.errors.values()),
        "short_answers": found.measures.short_answers,
        **{key: measures[key] for key in ("ttft_seconds", "tpot_seconds", "output_tokens_per_second")},
        "samples": [[round(sample.ttft, 5), sample.tpot and round(sample.tpot, 6)] for sample in found.samples],
    }


def options(url: str, name: str, amount: int, dry_run: bool) -> BenchOptions:
    """What is sent for one line of a table."""
    asked: dict[str, Any] = {"images": 0, "max_tokens": 1, "requests": 5}
    if name == "images":
        asked |= {"images": amount, "text_tokens": 16}
        asked |= {"width": 84, "height": 56} if dry_run else {"width": 1280, "height": 720}
    elif name == "prompt":
        asked |= {"text_tokens": amount}
    else:
        asked |= {"concurrency": amount, "requests": max(2, amount)}
        asked |= {"text_tokens": 16, "max_tokens": 4} if dry_run else {"text_tokens": 256, "max_tokens": 128}
    return BenchOptions(url=url, warmup=1, seed=amount, **asked)


if __name__ == "__main__":
    raise SystemExit(main())
