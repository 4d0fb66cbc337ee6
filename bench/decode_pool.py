"""Images prepared with their decoders in processes, beside threads: python -m bench.decode_pool [--output FILE].

Both take the same files in turns, so that whatever else the machine does meets both. `prepare` is all that a
preprocessing thread does of an image, from its bytes to the pixels that the tower takes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.encoder_preprocess import picture
from tests.engine_encoder.rig import item_of
from triptych.journey import Item
from triptych.loadgen.provenance import provenance
from triptych.models.card import load_card
from triptych.services.encoder.decode_pool import DecodePool
from triptych.services.encoder.decode_process import DecodeProcess
from triptych.services.encoder.prepare import Preparer

SIZES = ((224, 224), (640, 480), (1280, 720), (2000, 1500))
THREADS = 2

_CPU_SECONDS = """
import resource
import triptych.services.encoder.decode_child
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="of the smallest image; larger ones less")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    card = load_card("tiny-vl", "float32")
    pool = DecodePool(THREADS)
    pool.await_started()
    ways = {"threads": Preparer(card), "processes": Preparer(card, decoder=pool)}
    rows = []
    for width, height in SIZES:
        data = picture(width, height)
        rounds = max(8, arguments.rounds * 224 * 224 // (width * height))
        rows.append({"image": f"{width}x{height}", **_compared(ways, data, item_of(card, data), rounds)})
    start = _start()
    pool.close()
    _show(rows, start)
    if arguments.output:
        record = {"what": "seconds to prepare an image, medians", **provenance(), "start": start, "images": rows}
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


def _compared(ways: dict[str, Preparer], data: bytes, item: Item, rounds: int) -> dict[str, Any]:
    alone: dict[str, list[float]] = {name: [] for name in ways}
    together: dict[str, list[float]] = {name: [] for name in ways}
    with ThreadPoolExecutor(THREADS) as threads:
        for number in range(rounds + 2):
            for name, prepare in ways.items():
                began = time.perf_counter()
                prepare(data, item)
                middle = time.perf_counter()
                list(threads.map(lambda _, prepare=prepare: prepare(data, item), range(2 * THREADS)))
                if number >= 2:
                    alone[name].append(middle - began)
                    together[name].append((time.perf_counter() - middle) / (2 * THREADS))
    found: dict[str, Any] = {}
    for what, seconds in (("alone", alone), ("in_threads", together)):
        medians = {name: statistics.median(each) for name, each in seconds.items()}
        # Of each turn's two, so that a busy moment counts for neither.
        added = [late - early for early, late in zip(seconds["threads"], seconds["processes"], strict=True)]
        found[what] = {
            **medians,
            "ratio": medians["processes"] / medians["threads"],
            "added_seconds": statistics.median(added),
        }
    return {"rounds": rounds, "threads": THREADS, **found}


def _start() -> dict[str, float]:
    """Of one process: seconds until it is ready, and what it holds then."""
    began = time.perf_counter()
    process = DecodeProcess()
    process.await_ready(30.0)
    seconds = time.perf_counter() - began
    status = Path(f"/proc/{process.pid}/status").read_text()
    held = {name: int(status.split(f"{name}:")[1].split()[0]) / 1024 for name in ("VmRSS", "RssAnon")}
    process.end()
    cpu = float(subprocess.run([sys.executable, "-c", _CPU_SECONDS], capture_output=True, text=True, check=True).stdout)
    return {"seconds": seconds, "cpu_seconds": cpu, "rss_mib": held["VmRSS"], "own_mib": held["RssAnon"]}


def _show(rows: list[dict[str, Any]], start: dict[str, float]) -> None:
    table = Table("image", "threads, ms", "processes, ms", "ratio", "added, ms", "ratio, all threads busy")
    for row in rows:
        alone = row["alone"]
        times = (alone["threads"], alone["processes"])
        table.add_row(
            row["image"],
            *(f"{1e3 * each:.2f}" for each in times),
            f"{alone['ratio']:.2f}",
            f"{1e3 * alone['added_seconds']:.2f}",
            f"{row['in_threads']['ratio']:.2f}",
        )
    Console().print(table, {name: round(value, 3) for name, value in start.items()})


if __name__ == "__main__":
    main()
