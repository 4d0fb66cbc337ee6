"""What 8-bit weights and 8-bit KV cost in accuracy: python -m bench.fp8_accuracy [--samples 100] [--device cuda].

The embedded model is asked the questions that `python -m tools.tiny_vl evaluate` asks, each with its right answer
behind it, so that one pass tells what greedy decoding would give: an answer is right where each of its tokens is the
likeliest behind the ones before it. Other models (--model) get random tokens, and their logits are compared alone.
Everything is held against the same model in float32, keys and values in float32; bfloat16 stands beside it, since that
is what 8 bits are an alternative to. Image rows are the same for all, made in float32.

    logit_error_max, _rms     of all logits of all tokens of the answers
    logit_error_relative      root of a token's mean square error by the spread of its logits, mean over tokens
    kl_mean_nats, kl_max_nats of the float32 model's distribution to this one's, by token
    top1_agreement            tokens for which both find the same likeliest one
    largest_gap_overturned    how far ahead of the second, in logits, a likeliest token was that is none any more
    exact                     answers that are right to the letter, the end included
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from bench.fp8_figures import Foretold, exact_figures, logit_figures
from bench.fp8_prompts import Prompt, exam_prompts, random_prompts
from triptych.config import LanguageSettings
from triptych.loadgen.provenance import provenance
from triptych.models.base import LanguageModel, PagedInputs
from triptych.models.card import ModelCard, load_card
from triptych.models.folder import EMBEDDED_MODEL
from triptych.models.loading import load_language

RESULT = Path(__file__).resolve().parent / "results/fp8-accuracy.json"
SEED = 20_000
_STEP_TOKENS = 2048  # of all prompts that are computed at once
_SHOWN = ("logit_error_max", "logit_error_relative", "kl_mean_nats", "top1_agreement", "largest_gap_overturned")


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to keep the same model."""

    dtype: str
    weights: str = "auto"
    kv_dtype: str = "auto"

    @property
    def name(self) -> str:
        kept = {"weights": self.weights, "KV": self.kv_dtype}
        small = [f"{kind} {what}" for what, kind in kept.items() if kind != "auto"]
        return ", ".join([self.dtype, *small])


REFERENCE = Variant("float32")


def variants(dtype: str) -> tuple[Variant, ...]:
    """What is held against the reference; dtype: what 8 bits are combined with."""
    small = [Variant(dtype, weights, kv) for weights, kv in (("fp8", "auto"), ("auto", "fp8"), ("fp8", "fp8"))]
    return (Variant("bfloat16"), *small)


def main() -> int:
    arguments = read_arguments()
    card = load_card(arguments.model, "auto", load_format=arguments.load_format)
    device = torch.device(arguments.device)
    prompts = list(_prompts(arguments, card))
    reference = list(foretell(_model(card, device, REFERENCE, arguments.block_size), prompts, arguments.block_size))
    measured: dict[str, Any] = {REFERENCE.name: _exact(card, reference)}
    for variant in variants(arguments.dtype or ("bfloat16" if device.type == "cuda" else "float32")):
        began = time.monotonic()
        found = list(foretell(_model(card, device, variant, arguments.block_size), prompts, arguments.block_size))
        measured[variant.name] = logit_figures(found, reference) | _exact(card, found)
        print(f"{variant.name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    show(measured)
    what = {"script": "bench/fp8_accuracy.py", "model": card.name, "device": device.type, "seed": arguments.seed}
    what |= {"prompts": len(prompts), "prompt_tokens": sum(each.num_tokens for each in prompts)}
    arguments.output.write_text(json.dumps({"what": what, **provenance(), "variants": measured}, indent=1) + "\n")
    return 0


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED_MODEL, help="the embedded model or a folder")
    parser.add_argument("--load-format", choices=["auto", "dummy"], default="auto")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float16"], help="beside 8 bits (default: by device)"
    )
    parser.add_argument("--samples", type=int, default=100, help="of each family; of random prompts in all")
    parser.add_argument("--tokens", type=int, default=256, help="of a random prompt")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--output", type=Path, default=RESULT)
    return parser.parse_args(words)


def _prompts(arguments: argparse.Namespace, card: ModelCard) -> Iterator[Prompt]:
    if arguments.model == EMBEDDED_MODEL:
        return exam_prompts(card, arguments.samples, arguments.seed)
    hidden = int(card.config.get("text_config", card.config)["hidden_size"])
    return random_prompts(card.vocab_size, hidden, arguments.samples, arguments.tokens, arguments.seed)


def _model(card: ModelCard, device: torch.device, variant: Variant, block_size: int) -> LanguageModel:
    settings = LanguageSettings(
        decoder="lean", weights=variant.weights, kv_dtype=variant.kv_dtype, block_size=block_size
    )
    return load_language(card, device, variant.dtype, settings)


def _exact(card: ModelCard, found: Sequence[Foretold]) -> dict[str, Any]:
    """Random tokens have no right answer."""
    return {"exact": exact_figures(found)} if card.name == EMBEDDED_MODEL else {}


@torch.inference_mode()
def foretell(model: LanguageModel, prompts: Sequence[Prompt], block_size: int) -> Iterator[Foretold]:
    """The model's logits for every prompt's answer, in order; several prompts in one pass."""
    begin = 0
    while begin < len(prompts):
        end, tokens = begin + 1, prompts[begin].num_tokens
        while end < len(prompts) and tokens + prompts[end].num_tokens <= _STEP_TOKENS:
            tokens += prompts[end].num_tokens
            end += 1
        yield from _step(model, prompts[begin:end], block_size)
        begin = end


def _step(model: LanguageModel, prompts: Sequence[Prompt], block_size: int) -> Iterator[Foretold]:
    device, lengths = model.device, [prompt.num_tokens for prompt in prompts]
    width = -(-max(lengths) // block_size)
    tables = np.arange(len(prompts) * width).reshape(len(prompts), width)
    slots = [row * width * block_size + np.arange(length) for row, length in enumerate(lengths)]
    begins = np.cumsum([0, *lengths])
    asked = [
        begin + np.arange(prompt.answer[0] - 1, prompt.answer[1] - 1)
        for begin, prompt in zip(begins, prompts, strict=False)
    ]
    positions = [prompt.positions[:, : prompt.num_tokens] for prompt in prompts]
    inputs = PagedInputs(
        positions=torch.from_numpy(np.concatenate(positions, axis=1)).to(device),
        slots=torch.from_numpy(np.concatenate(slots)).to(device),
        query_lengths=tuple(lengths),
        kv_lengths=tuple(lengths),
        block_tables=torch.from_numpy(tables).to(device),
        logits_at=torch.from_numpy(np.concatenate(asked)).to(device),
    )
    shape = model.kv.slab_shape(tables.size, block_size)
    slab = torch.zeros(shape, dtype=torch.uint8 if model.kv.dtype.itemsize == 1 else model.kv.dtype, device=device)
    embeddings = torch.cat([_embeddings(model, prompt) for prompt in prompts])
    logits = model.forward(embeddings, inputs, slab.view(model.kv.dtype)).float().cpu()
    done = 0
    for prompt, rows in zip(prompts, asked, strict=True):
        part = logits[done : done + len(rows)]
        done += len(rows)
        begin, end = prompt.answer
        yield Foretold(prompt.family, part, torch.from_numpy(prompt.token_ids[begin:end]))


def _embeddings(model: LanguageModel, prompt: Prompt) -> torch.Tensor:
    embeddings = model.embed(torch.from_numpy(prompt.token_ids[: prompt.num_tokens]).to(model.device))
    if len(prompt.rows_at):
        embeddings[torch.from_numpy(prompt.rows_at).to(model.device)] = prompt.rows.to(model.device, model.dtype)
    return embeddings


def show(measured: dict[str, Any]) -> None:
    table = Table("", *(name.replace("_", " ") for name in _SHOWN), "exact")
    for name, figures in measured.items():
        exact = figures["exact"]["all"] if "exact" in figures else None
        cells = [f"{figures[each]:.4g}" if each in figures else "" for each in _SHOWN]
        table.add_row(name, *cells, f"{exact['share']:.4f} ({exact['right']}/{exact['total']})" if exact else "")
    Console(width=160).print(table)


if __name__ == "__main__":
    sys.exit(main())
