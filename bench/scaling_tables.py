"""The tables of bench/scaling.py: measured cost, the cost of one more unit, the floor and what it is made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.encoder_work import QWEN_7B, Workload, flops
from bench.pages import markdown, seconds
from bench.roofline_work import H200, Decoder
from tools.make_geometry import GEOMETRIES

DECODER = Decoder.of(GEOMETRIES["qwen2.5-vl-7b"][0])
ANSWER_TOKENS = 128  # of a request in the batch table


@dataclass(frozen=True, slots=True)
class Floor:
    """The least seconds a line can take, and the shares that tell why it is not proportional to the amount."""

    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class Table:
    """One way to ask for more."""

    unit: str
    cost: str  # what is measured
    figure: Callable[[Mapping[str, Any]], float | None]  # seconds, of a line's entry
    floor: Callable[[int, float], Floor]  # of an amount and the mean length of the prompts


def lines(name: str, entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The page's table of what was measured, by amount; a sentence where nothing was."""
    table = TABLES[name]
    if not entries:
        return ["Not measured yet."]
    rows, last = [], (0, 0.0)
    for amount in sorted(map(int, entries)):
        entry = entries[str(amount)]
        value, floor = table.figure(entry), table.floor(amount, entry["prompt_tokens"])
        rows.append(_row(amount, entry, value, floor, last))
        last = (amount, value or 0.0)
    header = (table.unit, "prompt tokens", table.cost, "one more costs", "of linear", "floor", "ratio", "why", "tok/s")
    return markdown(header, rows)


def _row(
    amount: int, entry: Mapping[str, Any], value: float | None, floor: Floor, last: tuple[int, float]
) -> Sequence[str]:
    """`of linear`: the cost of one more unit, over the mean cost of those before it; 1 where growth is linear."""
    more = None if value is None or not last[0] else (value - last[1]) / (amount - last[0])
    linear = "–" if more is None or not last[1] else f"{more / (last[1] / last[0]):.2f}"
    ratio = "–" if value is None else f"{value / floor.seconds:.2f}"
    mark = " (not all answered)" if entry["errors"] or entry["short_answers"] else ""
    return (
        *(f"{amount:,}{mark}", f"{entry['prompt_tokens']:,.0f}", seconds(value)),
        *("–" if more is None else ("-" if more < 0 else "") + seconds(abs(more)), linear),
        *(seconds(floor.seconds), ratio, floor.why, f"{entry['output_tokens_per_second']:,.0f}"),
    )


def _median(name: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda entry: entry[name] and entry[name]["p50"]


def _images(amount: int, prompt_tokens: float) -> Floor:
    tower = amount * flops(QWEN_7B, Workload(1280, 720, 1).grid) / H200.flops_per_second
    prompt = _prompt(amount, prompt_tokens)
    whole = tower + prompt.seconds
    return Floor(whole, f"tower {tower / whole:.0%}, then the prompt: {prompt.why}")


def _prompt(amount: int, prompt_tokens: float) -> Floor:
    """Products by tokens, attention by their square; the weights are read whatever the prompt."""
    tokens = round(prompt_tokens)
    operations, moved = DECODER.prompt(tokens)
    attention = DECODER.attention_flops(0, tokens) / operations
    compute, memory = operations / H200.flops_per_second, moved / H200.bytes_per_second
    if memory > compute:
        return Floor(memory, "reading the weights")
    return Floor(compute, f"attention {attention:.0%} of the products")


def _batch(amount: int, prompt_tokens: float) -> Floor:
    """The weights are read once for all; KV by the sequence; products take over where they outlast the reading."""
    context = round(prompt_tokens) + ANSWER_TOKENS // 2
    operations, moved = DECODER.decode(amount, context)
    compute, memory = operations / H200.flops_per_second, moved / H200.bytes_per_second
    weights = (DECODER.layer_weights + DECODER.head_weights) * 2 / moved
    why = f"weights {weights:.0%} of the bytes" if memory >= compute else "products"
    return Floor(max(compute, memory), why)


TABLES: Mapping[str, Table] = {
    "images": Table("images", "TTFT", _median("ttft_seconds"), _images),
    "prompt": Table("words", "TTFT", _median("ttft_seconds"), _prompt),
    "batch": Table("at once", "TPOT", _median("tpot_seconds"), _batch),
}
