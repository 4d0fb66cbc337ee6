"""The measured figures of docs/tiny-vl.md: python -m tools.tiny_vl card puts them between the markers there."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.tiny_vl.intervals import Tally
from tools.tiny_vl.table import family_markdown, fault_markdown, markdown

_ROOT = Path(__file__).resolve().parents[2]
CARD = _ROOT / "docs/tiny-vl.md"
RESULTS = _ROOT / "bench/results"
_MISSING = "Not measured yet."

Measured = Mapping[str, Any]  # one of the result files


def main() -> int:
    """Write the figures of bench/results into the card, and print them."""
    sections = sections_from(RESULTS)
    CARD.write_text(filled(CARD.read_text(), sections))
    print("\n\n".join(sections.values()))
    return 0


def sections_from(results: Path) -> dict[str, str]:
    """What belongs between which markers, by the result files in a folder."""
    told = {"accuracy": of_accuracy, "held-out": of_held_out, "faults": of_faults}
    measured = {name: _read(results / f"tiny_vl_{name.replace('-', '_')}.json") for name in told}
    return {name: _MISSING if (found := measured[name]) is None else tell(found) for name, tell in told.items()}


def filled(card: str, sections: Mapping[str, str]) -> str:
    """The card with each section between `<!-- name -->` and `<!-- /name -->`.

    Raises ValueError where the card has not exactly one such pair.
    """
    for name, text in sections.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, found, rest = card.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found and found_end) or begin in after or end in before + after:
            raise ValueError(f"the card has not one {begin} … {end}")
        card = f"{before}{begin}\n{text}\n{end}{after}"
    return card


def of_accuracy(measured: Measured) -> str:
    """Where the figures come from, and their table. measured: what `evaluate` writes"""
    return f"{measured['requests']} questions, {_origin(measured)}.\n\n{markdown(_tallies(measured))}"


def of_held_out(measured: Measured) -> str:
    """Where the figures come from, and a row for each family. measured: what `evaluate --held-out` writes"""
    return f"{measured['requests']} questions, {_origin(measured)}.\n\n{family_markdown(_tallies(measured))}"


def of_faults(measured: Measured) -> str:
    """Where the figures come from, and their table. measured: what tests.tiny_vl.measure_faults writes"""
    tallies: dict[str, dict[str, Tally]] = {}
    for name, entry in measured["noticed"].items():
        fault, _, place = name.partition(" | ")
        tallies.setdefault(fault, {})[place] = Tally(entry["noticed"], entry["total"], entry["bound"])
    return (
        f"First tokens count as noticed from {measured['tolerance_nats']} nats on; two healthy runs differ by "
        f"{measured['noise_nats']:.0e}. {measured['what']['samples']} questions a figure, {_origin(measured)}.\n\n"
        f"{fault_markdown(tallies)}"
    )


def _tallies(measured: Measured) -> dict[str, dict[str, Tally]]:
    return {
        family: {
            name: Tally(entry["right"], entry["total"], entry["bound"]) for name, entry in figures["kinds"].items()
        }
        for family, figures in measured["families"].items()
    }


def _origin(measured: Measured) -> str:
    what, machine = measured["what"], measured["machine"]
    served = f"topology {what['topology']}" + (f" at {what['url']}" if what.get("url") else "")
    commit, _, changed = (measured["commit"] or "unknown").partition(" ")
    return (
        f"{what['model']} in {served}, seed {what['seed']}, on {machine['cores']} cores ({machine['processor']}), "
        f"{measured['date'][:10]}, commit {commit[:7]} {changed}".rstrip()
    )


def _read(file: Path) -> Measured | None:
    if not file.exists():
        return None
    measured: Measured = json.loads(file.read_text())
    return measured
