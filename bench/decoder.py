"""The lean decoder beside transformers' modules, step by step: python -m bench.decoder [--output FILE].

Both run the same steps over the same paged attention, in turns, so that whatever else the machine does meets both. On
the CPU a step's time is its thread's CPU time (torch keeps to one thread), on CUDA the device's own clock.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from triptych.config import LanguageSettings
from triptych.loadgen.provenance import provenance
from triptych.models.base import LanguageModel, PagedInputs
from triptych.models.card import load_card
from triptych.models.loading import load_language

BLOCK_SIZE = 16
KINDS = ("lean", "generic")
CONTEXT_TOKENS = 300  # of each branch
DECODES = (1, 8, 32)
PREFILLS = (100, 400, 1500)


def main() -> None:
    arguments = _arguments()
    device = torch.device(arguments.device)
    torch.set_num_threads(1)
    card = load_card(arguments.model, arguments.dtype, load_format=arguments.load_format)
    models = {
        kind: load_language(card, device, arguments.dtype, LanguageSettings(decoder=kind, block_size=BLOCK_SIZE))
        for kind in KINDS
    }
    steps = [(f"decode {n}", [1] * n, CONTEXT_TOKENS) for n in DECODES]
    steps += [(f"prefill {n}", [n], 0) for n in PREFILLS]
    rows = [_measured(name, queries, before, models, arguments.rounds) for name, queries, before in steps]
    _show(rows)
    if arguments.output:
        record = {"what": "milliseconds of a decoder's step", "model": card.name, **provenance(), "steps": rows}
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-vl")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def _measured(
    name: str, queries: list[int], before: int, models: dict[str, LanguageModel], rounds: int
) -> dict[str, Any]:
    """Milliseconds of each round and their medians, by decoder."""
    runs = {kind: _step(model, queries, before) for kind, model in models.items()}
    samples: dict[str, list[float]] = {kind: [] for kind in runs}
    for number in range(rounds + 2):
        for kind, run in runs.items():
            spent = _milliseconds(run, models[kind].device)
            if number >= 2:  # what is compiled, packed or planned is by then
                samples[kind].append(round(spent, 4))
    medians = {kind: statistics.median(each) for kind, each in samples.items()}
    return {"step": name, **medians, "ratio": medians["lean"] / medians["generic"], "samples": samples}


def _step(model: LanguageModel, queries: list[int], before: int) -> Callable[[], Tensor]:
    """One step of so many new tokens in each sequence, behind so many that are there."""
    device, total = model.device, sum(queries)
    blocks = -(-(before + max(queries)) // BLOCK_SIZE)
    tables = torch.arange(len(queries) * blocks).view(len(queries), blocks)
    spans = [torch.arange(before, before + n) for n in queries]
    slots = [table[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for table, at in zip(tables, spans, strict=True)]
    inputs = PagedInputs(
        positions=torch.cat(spans).expand(3, -1).contiguous().to(device),
        slots=torch.cat(slots).to(device),
        query_lengths=tuple(queries),
        kv_lengths=tuple(before + n for n in queries),
        block_tables=tables.to(device),
        logits_at=(torch.tensor(queries).cumsum(0) - 1).to(device),
    )
    slab = torch.zeros(model.kv.slab_shape(len(queries) * blocks, BLOCK_SIZE), dtype=model.kv.dtype, device=device)
    ids = (torch.arange(total) % (model.vocab_size - 7) + 7).to(device)
    return lambda: model.forward(model.embed(ids), inputs, slab)


@torch.inference_mode()
def _milliseconds(run: Callable[[], Tensor], device: torch.device) -> float:
    if device.type != "cuda":
        began = time.thread_time()
        run()
        return (time.thread_time() - began) * 1e3
    event: Any = torch.cuda.Event
    first, last = (event(enable_timing=True) for _ in range(2))
    first.record()
    run()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last))


def _show(rows: list[dict[str, Any]]) -> None:
    table = Table("step", *(f"{kind}, ms" for kind in KINDS), "ratio")
    for row in rows:
        table.add_row(row["step"], *(f"{row[kind]:.2f}" for kind in KINDS), f"{row['ratio']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
