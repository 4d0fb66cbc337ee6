"""Hand-offs between two processes on one device: python -m bench.handoff [--quick] [--limit 120].

An owner with a worker's server, leases and slabs, and a consumer with a worker's reader: what lies between the tiers,
without models. Rows go as from an encoder to prefill (items of 1,196 x 3,584 bfloat16), KV as from prefill to decode
(10,000 tokens, 28 layers x 4 heads x 128, bfloat16: 625 blocks of 896 KiB, scattered at both ends, and in a row).

    p50_ms, p99_ms   from the arrival of the ref's bytes until all is in place, and its generations checked: parsing the
                     ref, waiting for a thread, the owner's event, all copies, also packing and unpacking. What the
                     owner computes is done by then. Releases go afterwards, by themselves
    plain_copy_ms    one copy of as many bytes within the device's memory, in the same run, by the device's clock
    overhead_p50_ms  the one less the other
    gb_per_s         bytes by p50: packing and unpacking included
    steps            with --steps: calls and milliseconds of each step of a hand-over, by further hand-overs
    blocks_on_the_device   the copy of scattered KV blocks out of the mapped arena alone, by the device's clock

Every hand-off is looked at: each number must be what the owner wrote for it. The result is written after each part, the
most important ones first, and no part begins once the limit is reached. Status 1 where a part failed; whether goals are
reached is printed, and written.
"""

import argparse
import faulthandler
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bench.encoder import machine_name
from bench.handoff_blocks import block_copies
from bench.handoff_consumer import Consumer, OwnerProcess, plain_copy_seconds
from bench.handoff_consumer import Path as Way
from bench.handoff_figures import figures, goals, growth
from bench.handoff_pieces import PieceReader
from bench.handoff_sizes import QWEN_7B, TINY
from bench.handoff_steps import CONSUMER, Clocks, lines, pause_seconds
from triptych.config import Settings, load_settings
from triptych.loadgen.provenance import provenance

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
WARM_UPS = 6
SPARE_SECONDS = 30.0  # behind the limit; then the process is ended
SAMPLES = 40  # of memory, while it is watched


def main() -> int:
    arguments = read_arguments()
    torch.set_num_threads(1)  # copies are memory's work; other threads only disturb
    faulthandler.dump_traceback_later(arguments.limit + SPARE_SECONDS, exit=True)
    return Bench(arguments, Console(stderr=True, highlight=False)).run()


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a dry run with little memory on the CPU")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which no further part begins")
    parser.add_argument("--hand-offs", type=int, default=60, help="of each kind that is timed")
    parser.add_argument("--endure", type=int, default=1000, help="hand-offs over which memory is watched")
    parser.add_argument("--only", default="", help="parts whose names contain this, or one of these, joined by commas")
    parser.add_argument("--steps", type=int, default=0, help="hand-offs of each kind whose steps are timed besides")
    parser.add_argument("--output", type=Path, help="default: bench/results/handoff-<machine>.json, of --quick none")
    return parser.parse_args(words)


class Bench:
    """All parts of one run, over one owner process."""

    def __init__(self, arguments: argparse.Namespace, console: Console) -> None:
        self._began = time.monotonic()
        self._arguments, self._console = arguments, console
        self._device = torch.device("cpu") if arguments.quick else torch.device("cuda", 0)
        self._sizes = TINY if arguments.quick else QWEN_7B
        self._near = "shm" if arguments.quick else "cuda_ipc"
        self._plain: dict[int, float] = {}
        self._result: dict[str, Any] = {"what": "bench/handoff.py", **provenance()}
        self._result |= {"device": self._device_name(), "paths": {}, "seconds_of_parts": {}, "errors": {}}
        self._result["shortest_pause_us"] = pause_seconds() * 1e6

    def run(self) -> int:
        owner = OwnerProcess(settings_for(""), str(self._device), self._sizes)
        try:
            self._part("plain copies", self._plain_copies)
            for name, work in self._parts(owner):
                self._part(name, work)
        finally:
            self._write()
            owner.close()
        show(self._result)
        return 1 if self._result["errors"] else 0

    def _parts(self, owner: OwnerProcess) -> list[tuple[str, Callable[[], None]]]:
        near, wide = settings_for(self._near), settings_for("nixl", window_bytes=self._sizes.kv_bytes)
        far = settings_for("nixl")
        return [
            (f"{self._near} rows", lambda: self._paths(self._near, near, owner, "item")),
            (f"{self._near} KV", lambda: self._paths(self._near, near, owner, "KV")),
            (f"{self._near} blocks", lambda: self._blocks(near, owner)),
            ("nixl rows", lambda: self._paths("nixl", far, owner, "item")),
            ("nixl KV", lambda: self._paths("nixl", far, owner, "KV")),
            ("nixl pieces", lambda: self._pieces(owner)),
            (f"{self._near} endurance", lambda: self._endure(self._near, near, owner)),
            ("nixl KV, wide", lambda: self._paths("nixl, one window for all", wide, owner, "KV")),
            ("nixl endurance", lambda: self._endure("nixl", far, owner)),
        ]

    def _part(self, name: str, work: Callable[[], None]) -> None:
        """Runs a part unless time is up; a failure is written down, and the next part has its turn."""
        if not any(word in name for word in self._arguments.only.split(",")) and name != "plain copies":
            return
        if self._seconds() > self._arguments.limit:
            self._result["errors"][name] = f"not begun: {self._arguments.limit:g} s are up"
            return
        self._console.print(f"{self._seconds():5.1f} s: {name}", style="dim")
        began = time.monotonic()
        try:
            with torch.inference_mode():
                work()
        except Exception as error:
            self._result["errors"][name] = f"{type(error).__name__}: {error}"
            self._console.print_exception()
        self._result["seconds_of_parts"][name] = round(time.monotonic() - began, 2)
        self._write()

    def _plain_copies(self) -> None:
        sizes = self._sizes
        for num_bytes in (sizes.item_bytes, sizes.items * sizes.item_bytes, sizes.kv_bytes):
            self._plain[num_bytes] = statistics.median(plain_copy_seconds(self._device, num_bytes, sizes.plain_repeats))
        self._result["plain_copies_ms"] = {str(size): each * 1e3 for size, each in self._plain.items()}

    def _paths(self, transport: str, settings: Settings, owner: OwnerProcess, kind: str) -> None:
        with Consumer(owner, settings, self._device, self._sizes) as consumer:
            opened = time.perf_counter()
            found = consumer.open()
            opened = time.perf_counter() - opened
            if not transport.startswith(found):
                raise RuntimeError(f"the pair is joined by {found}, expected {transport}")
            parts = self._result["paths"].setdefault(transport, {})
            for way in consumer.paths():
                if kind in way.what:
                    parts[way.what] = self._timed(way)
                    if self._arguments.steps:
                        parts[way.what]["steps"] = self._steps(way, owner)
            pairs = self._result.setdefault("pairs", {})
            pairs[f"{transport}, {kind}"] = {"open_ms": opened * 1e3, "claims_left": consumer.wait_until_given_back()}

    def _timed(self, way: Way) -> dict[str, Any]:
        first = way.hand_over()
        for _ in range(WARM_UPS):
            way.hand_over()
        seconds = [way.hand_over() for _ in range(self._arguments.hand_offs)]
        return figures(seconds, way.num_bytes, self._plain[way.num_bytes]) | {"first_ms": first * 1e3}

    def _steps(self, way: Way, owner: OwnerProcess) -> dict[str, dict[str, float]]:
        clocks, count = Clocks(), self._arguments.steps
        owner.ask("time_steps")
        with clocks.around(CONSUMER):
            for _ in range(count):
                way.hand_over()
        theirs: dict[str, dict[str, float]] = owner.ask("steps", count)
        return clocks.figures(count) | theirs

    def _endure(self, transport: str, settings: Settings, owner: OwnerProcess) -> None:
        """Nine of ten hand-offs are of one item, the tenth is of KV."""
        count = self._arguments.endure
        with Consumer(owner, settings, self._device, self._sizes) as consumer:
            consumer.open()
            samples = []
            for number in range(count):
                if number % max(1, count // SAMPLES) == 0:
                    samples.append(consumer.memory())
                consumer.kv(in_row=False) if number % 10 == 9 else consumer.rows(1)
            samples.append(consumer.memory())
            self._result.setdefault("endurance", {})[transport] = {
                "hand_offs": count,
                "growth_bytes": growth(samples),
                "first": samples[len(samples) // 4],
                "last": samples[-1],
                "claims_left": consumer.wait_until_given_back(),
            }

    def _pieces(self, owner: OwnerProcess) -> None:
        sizes = self._sizes
        into = torch.zeros(sizes.pool, sizes.block_bytes, dtype=torch.uint8, device=self._device)
        reader = PieceReader(owner.ask("pieces", "export"), into)
        order = torch.randperm(sizes.pool, generator=torch.Generator().manual_seed(3)).tolist()
        sources, targets = order[: sizes.blocks], order[-sizes.blocks :]
        unpacked = [reader.unpacked(sources, targets) for _ in range(4)][1:]
        packs = [(owner.ask("pieces", "pack", sources), *reader.packed(targets)) for _ in range(8)][2:]
        slow = statistics.median(unpacked)
        kv = self._result["paths"].get("nixl", {}).get("KV, scattered", {}).get("gb_per_s")
        stages = zip(("pack_ms", "read_ms", "unpack_ms"), zip(*packs, strict=True), strict=True)
        self._result["nixl_pieces"] = {
            "unpacked_ms": slow * 1e3,
            "unpacked_gb_per_s": sizes.kv_bytes / slow / 1e9,
            **{name: statistics.median(each) * 1e3 for name, each in stages},
            "packed_gb_per_s": sizes.kv_bytes / statistics.median(map(sum, packs)) / 1e9,
            "packed_times_unpacked": slow / statistics.median(map(sum, packs)),
            "kv_times_unpacked": kv and kv * 1e9 * slow / sizes.kv_bytes,
        }

    def _blocks(self, settings: Settings, owner: OwnerProcess) -> None:
        sizes = self._sizes
        with Consumer(owner, settings, self._device, sizes) as consumer:
            arena = consumer.kv_arena()
            source = arena.data.view(sizes.pool, sizes.block_bytes)
            self._result["blocks_on_the_device"] = block_copies(source, sizes, self._plain[sizes.kv_bytes])
            del source
            arena.close()

    def _write(self) -> None:
        self._result |= {"seconds": round(self._seconds(), 1), "goals": list(goals(self._result))}
        path = self._arguments.output
        if path is None and self._arguments.quick:
            return
        path = path or ROOT / f"bench/results/handoff-{machine_name(self._device_name())}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self._result, indent=1) + "\n")

    def _device_name(self) -> str:
        return torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else "cpu"

    def _seconds(self) -> float:
        return time.monotonic() - self._began


def settings_for(transport: str, window_bytes: int = 0) -> Settings:
    """Of a worker that uses one transport, or the nearest for an empty name; with room to pack all KV at once."""
    settings = load_settings(environment={})
    transfer = replace(settings.transfer, nixl_staging_bytes=640 * MIB)
    if transport:
        transfer = replace(transfer, transports=(transport,), nixl_window_bytes=window_bytes)
    if window_bytes:
        transfer = replace(transfer, nixl_windows=2)
    return replace(settings, transfer=transfer)


def show(result: Mapping[str, Any]) -> None:
    for transport, parts in result["paths"].items():
        for what, found in parts.items():
            if isinstance(found, dict) and "p50_ms" in found:
                numbers = f"p50 {found['p50_ms']:8.3f} ms, p99 {found['p99_ms']:8.3f} ms, {found['gb_per_s']:7.1f} GB/s"
                print(f"{transport:10s} {what:14s} {numbers}, {found['overhead_p50_ms']:7.3f} ms beyond the copy")
                print(*lines(found.get("steps", {})), sep="\n", end="\n" if "steps" in found else "")
    for goal in result["goals"]:
        print(f"{'holds' if goal['holds'] else 'MISSED'}: {goal['what']}: {goal['reached']:.4g}, {goal['goal']}")
    for name, error in result["errors"].items():
        print(f"FAILED: {name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
