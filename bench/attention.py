"""Every implementation of paged attention side by side: python -m bench.attention [--quick] [--only decode|prompts].

The numbers are those of Qwen2.5-VL-7B's decoder (28 query heads, 4 key heads, 128 wide, bf16), keys and values random,
blocks dealt out at random. All ways attend in the same steps, in turns in one run:

    sdpa        torch's scaled_dot_product_attention over copied blocks
    triton …    our kernels, with each of the tile sizes that attention/tuning.py considers
    varlen      torch's varlen_attn, for prompts with nothing before them (else our kernels)
    flashinfer  where it is installed; its plan, made on the host, is not counted

    seconds  of one layer: the median over rounds of a step of 28 layers (prompts: 4), which do not fit into the cache.
             Decode steps are replayed as CUDA graphs, with what our kernels do once per step inside
    tb_per_s keys and values that have to be read, by these seconds (decode)
    tflops   products of pairs that see each other, by these seconds (prompts)

A way that fails its trial (attention/trial.py) is named with the reason and not timed. The result is written after each
step, so that a run which is cut off leaves what it has.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bench.attention_work import (
    DECODE_LAYERS,
    DECODES,
    PROMPT_LAYERS,
    PROMPTS,
    QUICK_DECODES,
    QUICK_PROMPTS,
    Point,
    make_work,
    prepared,
    shape_of,
    ways,
)
from triptych.loadgen.provenance import provenance
from triptych.models.attention.base import Attention, AttentionShape
from triptych.models.attention.trial import what_is_wrong

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "bench/results/attention.json"


def main() -> int:
    arguments = read_arguments()
    device = torch.device("cpu" if arguments.quick else "cuda")
    # As in serving, where it would plan attention anew for every length.
    torch.backends.cuda.enable_cudnn_sdp(False)
    with torch.inference_mode():
        result = Bench(arguments, device).run()
    return 0 if result["decode"] or result["prompts"] else 1


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a dry run of tiny steps on the CPU")
    parser.add_argument("--only", choices=("decode", "prompts"), help="one half of it")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=400.0, help="seconds after which no further step begins")
    parser.add_argument("--output", type=Path, help=f"default: {OUTPUT.relative_to(ROOT)}, of --quick none")
    arguments = parser.parse_args(words)
    if arguments.output is None and not arguments.quick:
        arguments.output = OUTPUT
    return arguments


class Bench:
    """One run. The result is a JSON object; its `decode` and `prompts` have figures by step, then by way."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        self._arguments = arguments
        self._device = device
        self._console = Console(stderr=True, highlight=False)
        self._shape = shape_of(device, arguments.block_size)
        self._result: dict[str, Any] = {
            "what": "paged attention, implementations side by side",
            **provenance(),
            "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else "none",
            "dtype": str(self._shape.dtype).removeprefix("torch."),
            "block_size": arguments.block_size,
            "decode": {},
            "prompts": {},
            "not_timed": {},
        }

    def run(self) -> dict[str, Any]:
        """Times all steps; the result so far stands in the output file at any time."""
        quick, only = self._arguments.quick, self._arguments.only
        if only != "prompts":
            self._half("decode", QUICK_DECODES if quick else DECODES, DECODE_LAYERS)
        if only != "decode":
            self._half("prompts", QUICK_PROMPTS if quick else PROMPTS, PROMPT_LAYERS)
        return self._result

    def _half(self, half: str, points: Sequence[Point], layers: int) -> None:
        working = self._working(half)
        for point in points:
            if time.perf_counter() - _BEGAN > self._arguments.limit:
                self._console.print(f"[yellow]no time left for {point.name}")
                return
            figures = {name: self._timed(name, each, point, layers) for name, each in working.items()}
            self._result[half][point.name] = {name: each for name, each in figures.items() if each}
            self._show(half, point)
            if self._arguments.output:
                self._arguments.output.write_text(json.dumps(self._result, indent=1, ensure_ascii=False) + "\n")

    def _working(self, half: str) -> dict[str, Attention]:
        working = {}
        for name, make in ways(self._shape, self._device, decode=half == "decode").items():
            try:
                attention = make()
                wrong = what_is_wrong(attention, self._shape, self._device)
            except Exception as error:  # a compiler may fail in any way
                wrong = f"{type(error).__name__}: {error}"[:500]
            if wrong:
                self._result["not_timed"][f"{half}: {name}"] = wrong
                self._console.print(f"[yellow]{name} is not timed: {wrong}")
            else:
                working[name] = attention
        return working

    def _timed(self, name: str, attention: Attention, point: Point, layers: int) -> dict[str, float]:
        try:
            work = make_work(point, self._shape, layers, self._device)
            step = prepared(attention, work, layers)
            seconds = _seconds(step, self._arguments.rounds, recorded=point.length == 1) / layers
        except Exception as error:  # out of memory, most likely
            self._result["not_timed"][f"{point.name}: {name}"] = f"{type(error).__name__}: {error}"[:500]
            return {}
        return {"seconds": seconds, **_rates(point, self._shape, seconds)}

    def _show(self, half: str, point: Point) -> None:
        table = Table(title=f"{half}: {point.name}")
        for title in ("way", "µs a layer", "TB/s" if half == "decode" else "TFLOP/s"):
            table.add_column(title, justify="left" if title == "way" else "right")
        for name, each in sorted(self._result[half][point.name].items(), key=lambda item: item[1]["seconds"]):
            rate = each["tb_per_s"] if half == "decode" else each["tflops"]
            table.add_row(name, f"{1e6 * each['seconds']:.1f}", f"{rate:.2f}")
        self._console.print(table)


def _rates(point: Point, shape: AttentionShape, seconds: float) -> dict[str, float]:
    if point.length == 1:
        return {"tb_per_s": point.kv_bytes(shape) / seconds / 1e12}
    return {"tflops": point.flops(shape) / seconds / 1e12}


def _seconds(step: Callable[[], list[Tensor]], rounds: int, *, recorded: bool) -> float:
    """Median time of the step; on CUDA by events, off it by the clock."""
    step()
    if not torch.cuda.is_available():
        return statistics.median(_by_clock(step) for _ in range(rounds))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph() if recorded else None
    if graph is not None:
        with torch.cuda.graph(graph):
            kept = step()  # noqa: F841  # its memory is the graph's
    replay = graph.replay if graph is not None else step
    for _ in range(2):
        replay()
    times: list[float] = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return statistics.median(times)


def _by_clock(step: Callable[[], list[Tensor]]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


_BEGAN = time.perf_counter()

if __name__ == "__main__":
    raise SystemExit(main())
