"""A decoder layer's matrix products in 8 bits beside 16, on a GPU: python -m bench.fp8_products [--device cpu].

The sides are Qwen2.5-VL-7B's. Each product is timed with the cutting of its activations, by CUDA events around many
calls over several copies of the weight, which together do not fit into the cache; the ways take turns.

    microseconds        of one call, the median of the turns
    terabytes_a_second  bytes of the weight by that time: what counts while tokens are few
    teraflops           floating point operations by that time: what counts when they are many
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from triptych.loadgen.provenance import provenance
from triptych.models.decoder.fp8 import Converter
from triptych.models.decoder.weights import Dense, Product

RESULT = Path(__file__).resolve().parent / "results/fp8-products-h200.json"
SIDES = {"qkv": (4608, 3584), "out": (3584, 3584), "gate_up": (37888, 3584), "down": (3584, 18944)}
TINY = {"qkv": (96, 64)}
ROWS = (1, 16, 64, 256, 2048)
_CACHE_BYTES = 128 << 20
_TURNS = 5


def main() -> int:
    arguments = read_arguments()
    device = torch.device(arguments.device)
    sides = SIDES if device.type == "cuda" else TINY
    measured = [figures for name, shape in sides.items() for figures in compare(name, shape, device)]
    show(measured)
    if device.type == "cuda":
        what = {"script": "bench/fp8_products.py", "gpu": torch.cuda.get_device_name(device)}
        arguments.output.write_text(json.dumps({"what": what, **provenance(), "products": measured}, indent=1) + "\n")
    return 0


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda", help="cpu: a dry run, nothing is written")
    parser.add_argument("--output", type=Path, default=RESULT)
    return parser.parse_args(words)


@torch.inference_mode()
def compare(name: str, shape: tuple[int, int], device: torch.device) -> list[dict[str, Any]]:
    """Figures of one product at every number of rows, in bfloat16 and in 8 bits."""
    copies = max(2, 2 * _CACHE_BYTES // (shape[0] * shape[1])) if device.type == "cuda" else 2
    dense = [Dense(torch.randn(shape, dtype=torch.bfloat16, device=device)) for _ in range(copies)]
    convert = Converter(device, torch.bfloat16)
    ways: dict[str, tuple[Sequence[Product], int]] = {
        "bfloat16": (dense, 2),
        "fp8": ([convert(each, name) for each in dense], 1),
    }
    found = []
    for rows in ROWS:
        x = torch.randn(rows, shape[1], dtype=torch.bfloat16, device=device)
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(_TURNS):
            for way, (products, _) in ways.items():
                times[way].append(_seconds(products, x, device))
        for way, (_, weight_bytes) in ways.items():
            seconds = statistics.median(times[way])
            found.append(
                {
                    "product": name,
                    "rows": rows,
                    "way": way,
                    "microseconds": round(seconds * 1e6, 2),
                    "terabytes_a_second": round(shape[0] * shape[1] * weight_bytes / seconds / 1e12, 3),
                    "teraflops": round(2 * rows * shape[0] * shape[1] / seconds / 1e12, 1),
                }
            )
    return found


def _seconds(products: Sequence[Product], x: Tensor, device: torch.device) -> float:
    """Of one call. Calls are recorded once, so that the host's own time does not count."""
    if device.type != "cuda":
        return _host_seconds(lambda: [product(x) for product in products]) / len(products)
    for product in products:
        product(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for product, _ in zip(cycle(products), range(4 * len(products)), strict=False):
            product(x)
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / (4 * len(products))


def _host_seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def show(measured: Sequence[dict[str, Any]]) -> None:
    table = Table(*measured[0])
    for figures in measured:
        table.add_row(*map(str, figures.values()))
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
