"""The vision tower against plain transformers, side by side on this machine: python -m bench.encoder [--quick].

The tower has the numbers of Qwen2.5-VL-7B's and random weights, made on the device: nothing is read or fetched. Every
way to encode takes the same images, one by one and packed, in turns (A-B-A-B) in one run:

    transformers, sdpa                   Qwen2_5_VisionTransformerPretrainedModel as transformers makes it
    transformers, flash_attention_2      the same, where that package is installed
    transformers' modules, varlen attention   fed what the host knows, packed attention (models/segment_attention.py)
    lean, eager                          models/qwen2_5_vl/lean_tower.py
    lean, graphs                         the same, replayed; padded to the bucket that an encoder would choose

    images_per_second  images of a turn by the median over all turns' seconds; the host's clock, which stops when the
                       device has finished
    tflops             floating point operations of the images, unpadded (bench/encoder_work.py has the formula), by the
                       same seconds
    dense_tflops       a matrix product of 8192 x 8192 x 8192 numbers in the same dtype, measured once in each round

What comes before the tower is measured apart (bench/encoder_preprocess.py). The result is written after each round, so
that a run which is cut off leaves what it has. Status 1 where the lean tower's rows are not those of transformers;
whether its speed reaches the goals is printed, and written.
"""

import argparse
import json
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bench.encoder_figures import PACKED, Timed, figures, goals, ways
from bench.encoder_preprocess import make_processor, preprocess_seconds
from bench.encoder_profile import kernels_by_time
from bench.encoder_towers import LEAN, SDPA, Towers, make_towers
from bench.encoder_work import QUICK_WORKLOADS, QWEN_7B, TINY, WORKLOADS, Workload
from triptych.loadgen.provenance import provenance

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 1_000_000  # of a result, which is kept in the repository
LARGEST_ERROR = {torch.bfloat16: 0.05, torch.float32: 1e-3}  # of the rows, against transformers', as a whole
TABLE_WIDTH = 140  # where the output is no terminal


def main() -> int:
    arguments = read_arguments()
    device = torch.device("cpu" if arguments.quick else "cuda")
    bench = Bench(arguments, device, Console(stderr=True, highlight=False))
    with torch.inference_mode():
        return bench.run()


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a dry run with a tiny tower on the CPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turn", type=float, default=0.5, help="seconds at least for each way in each round")
    parser.add_argument("--limit", type=float, default=170.0, help="seconds after which no further round begins")
    parser.add_argument("--output", type=Path, help="default: bench/results/encoder-<machine>.json, of --quick none")
    return parser.parse_args(words)


class Bench:
    def __init__(self, arguments: argparse.Namespace, device: torch.device, console: Console) -> None:
        self._began = time.monotonic()
        self._arguments = arguments
        self._device, self._console = device, console
        self._dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._config: Mapping[str, Any] = TINY if arguments.quick else QWEN_7B
        self._workloads = QUICK_WORKLOADS if arguments.quick else WORKLOADS
        self._dense: list[float] = []
        self._towers: Towers

    def run(self) -> int:
        self._say("making the towers, capturing graphs")
        self._towers = make_towers(self._config, make_processor().rule, self._workloads, self._device, self._dtype)
        images = {each: self._patches(each) for each in self._workloads}
        errors = {each.name: self._errors(each, images[each]) for each in self._workloads}
        timed = [way for each in self._workloads for way in ways(each, images[each], self._towers.encode)]
        self._say("preprocessing")
        result = self._frame() | {"errors_against_transformers": errors, "preprocess_seconds": self._preprocessing()}
        for number in range(self._arguments.rounds):
            if number and time.monotonic() - self._began > self._arguments.limit:
                self._say(f"the time is up after {number} rounds")
                break
            self._say(f"round {number + 1} of {self._arguments.rounds}")
            self._round(timed)
            result |= self._measured(timed)
            self._write(result)
        show(result, self._console)
        if self._device.type == "cuda":
            self._write(result | {"kernels_ms": self._kernels(timed)})
        wrong = {name: error for each in errors.values() for name, error in each.items() if error["too_large"]}
        return 1 if wrong else 0

    def _frame(self) -> dict[str, Any]:
        towers, on_gpu = self._towers, self._device.type == "cuda"
        kernels = {name: getattr(towers.lean.kernels, name).__module__ for name in ("add_norm", "rotate", "gate")}
        return {
            "what": {"script": "bench/encoder.py", "rounds": self._arguments.rounds, "turn": self._arguments.turn},
            **provenance(),
            "device": torch.cuda.get_device_name(self._device) if on_gpu else "cpu",
            "dtype": str(self._dtype),
            "tower": dict(self._config),
            "kernels": {name: module.rpartition(".")[2] for name, module in kernels.items()},
            "buckets": [[bucket.tokens, *bucket.contexts] for bucket in towers.buckets],
            "not_measured": dict(towers.missing),
        }

    def _preprocessing(self) -> dict[str, Any]:
        sizes = {f"{each.width}x{each.height}": each for each in self._workloads}
        budget = 0.2 if self._arguments.quick else 2.0
        return {name: preprocess_seconds(each, self._device, self._dtype, budget) for name, each in sizes.items()}

    def _patches(self, workload: Workload) -> list[Tensor]:
        generator = torch.Generator(self._device).manual_seed(1)
        shape = (workload.grid.patches, 3 * 2 * 14 * 14)
        return [
            torch.randn(*shape, generator=generator, dtype=self._dtype, device=self._device)
            for _ in range(workload.pack)
        ]

    def _errors(self, workload: Workload, images: Sequence[Tensor]) -> dict[str, dict[str, Any]]:
        """Of each way packed, against transformers one by one; it also warms everything up."""
        self._say(f"rows of {workload.name}")
        stock = self._towers.encode[SDPA]
        expected = torch.cat([stock(each, [workload.grid]) for each in images]).float()
        found = {}
        for name, encode in self._towers.encode.items():
            rows = encode(torch.cat(list(images)), [workload.grid] * workload.pack).float()
            encode(images[0], [workload.grid])
            error = float((rows - expected).norm() / expected.norm())
            found[name] = {"relative": error, "too_large": not error <= LARGEST_ERROR[self._dtype]}
        return found

    def _round(self, timed: Sequence[Timed]) -> None:
        self._dense.append(dense_tflops(self._device, self._dtype, 256 if self._arguments.quick else 8192))
        for way in timed:
            way.rounds.append([])
            while sum(way.rounds[-1]) < self._arguments.turn:
                self._synchronize()
                began = time.perf_counter()
                way.turn()
                self._synchronize()
                way.rounds[-1].append(time.perf_counter() - began)

    def _measured(self, timed: Sequence[Timed]) -> dict[str, Any]:
        dense = statistics.median(self._dense)
        workloads = {each.name: figures(each, timed, self._config, dense) for each in self._workloads}
        return {
            "seconds": round(time.monotonic() - self._began, 1),
            "dense_tflops": dense,
            "dense_tflops_of_each_round": self._dense,
            "workloads": workloads,
            "goals": list(goals(self._workloads, workloads)),
        }

    def _kernels(self, timed: Sequence[Timed]) -> dict[str, Any]:
        self._say("kernels")
        mine = [way for way in timed if (way.name, way.how) == (LEAN, PACKED)]
        return {f"{way.workload.name}, {way.name}": kernels_by_time(way.turn) for way in mine}

    def _write(self, result: Mapping[str, Any]) -> None:
        path = self._arguments.output
        if path is None and self._arguments.quick:
            return
        path = path or ROOT / f"bench/results/encoder-{machine_name(str(result['device']))}.json"
        text = json.dumps(result, indent=1) + "\n"
        assert len(text) < MOST_BYTES, f"{path} would have {len(text)} bytes, expected less than {MOST_BYTES}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _say(self, text: str) -> None:
        self._console.print(f"{time.monotonic() - self._began:5.1f} s: {text}", style="dim")


def machine_name(device: str) -> str:
    """Of `NVIDIA H200`, `h200`."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower().removeprefix("nvidia")).strip("-")


def dense_tflops(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """What a product of two random square matrices reaches: the mean of ten, after three."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    for number in range(13):
        if number == 3:
            began = _now(device)
        left @ right
    return 10 * 2 * size**3 / (_now(device) - began) / 1e12


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def show(result: Mapping[str, Any], console: Console) -> None:
    table = Table(title=f"{result['device']}, dense product {result['dense_tflops']:.3g} TFLOP/s")
    for column in ("workload", "tower", "images/s", "TFLOP/s", "of dense", "x transformers"):
        table.add_column(column, justify="left" if column in ("workload", "tower") else "right")
    for workload, entry in result["workloads"].items():
        for name, each in entry.items():
            if isinstance(each, dict):
                numbers = (each["images_per_second"], each["tflops"])
                shares = (f"{each['share_of_dense']:.1%}", f"{each['times_transformers']:.2f}")
                table.add_row(workload, name, *(f"{number:.4g}" for number in numbers), *shares)
        table.add_section()
    Console(width=None if console.is_terminal else TABLE_WIDTH).print(table)
    print("kernels: " + ", ".join(f"{name} {which}" for name, which in result["kernels"].items()))
    for size, stages in result["preprocess_seconds"].items():
        seconds = (f"{stage} {stages[stage] * 1e3:.2f} ms" for stage in ("decode", "resize", "patches", "transformers"))
        print(f"preprocessing of {size}: " + ", ".join(seconds))
    for workload, errors in result["errors_against_transformers"].items():
        for name, error in errors.items():
            if error["too_large"]:
                print(f"WRONG: rows of {workload} by {name} are {error['relative']:.2g} from those of transformers")
    for goal in result["goals"]:
        verdict = "holds" if goal["holds"] else "MISSED"
        print(f"{verdict}: {goal['measure']} of {goal['workload']}: {goal['reached']:.3g}, goal {goal['least']:g}")
    for name, reason in result["not_measured"].items():
        print(f"not measured: {name}: {reason}")


if __name__ == "__main__":
    raise SystemExit(main())
