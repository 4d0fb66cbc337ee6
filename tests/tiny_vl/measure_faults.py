"""What each fault does to answers and to first tokens: python -m tests.tiny_vl.measure_faults [--samples 200].

Each figure about answers rests on that many questions, those about first tokens on that many of every family. The
figures go to bench/results/tiny_vl_faults.json if they are of the embedded model and of as many at least. Exit code 1:
something is noticed less than it should be.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.tiny_vl import cases
from tests.tiny_vl.spoil import Fault
from tests.tiny_vl.spoilt_cluster import SpoiltCluster
from tools.tiny_vl.evaluate import EMBEDDED, named
from tools.tiny_vl.exam import Asking, Question, Reply, ask_all, distance
from tools.tiny_vl.intervals import Tally, wilson
from tools.tiny_vl.options import Parser, result_file, whole
from triptych.loadgen.provenance import provenance
from triptych.models.card import load_card

RESULT = Path(__file__).resolve().parents[2] / "bench/results/tiny_vl_faults.json"
SAMPLES = 200  # of a figure that is published, at least
SEED = 31_000
# In nats, of any of the 20 likeliest first tokens.
TOLERANCE = 0.01
# What two healthy runs may differ by, a twentieth of it: 1e-5 was met, from batches that were put together otherwise.
NOISE = 5e-4
ON_PLACES = (Fault.ROTATED, Fault.SEQUENTIAL, Fault.GRID)
GRIDS = ("grid-dense", "grid-loose")
_ANSWER = Asking(in_flight=32)
_FIRST_TOKEN = Asking(max_tokens=1, top_logprobs=20, in_flight=32)


@dataclass(frozen=True, slots=True)
class Round:
    """Questions and what a healthy cluster replied."""

    questions: Sequence[Question]
    asking: Asking
    healthy: Sequence[Reply]


class FaultBench:
    """A cluster, questions, and how its replies differ under faults; all is drawn and asked when first needed.

    samples:    questions for each figure about answers
    per_family: questions of each family for those about first tokens
    """

    def __init__(self, cluster: SpoiltCluster, model: str, samples: int, per_family: int, seed: int = SEED) -> None:
        self._cluster = cluster
        self._model = model
        self._samples = samples
        self._per_family = per_family
        self._seed = seed
        self._grids: dict[str, Round] = {}

    def swapped(self) -> Tally:
        """Answers that change of the right ones that should."""
        questions = cases.changed_by_swap(self._samples, self._seed, load_card(self._model, "float32"))
        return self._changed(self._round(questions, _ANSWER), Fault.SWAPPED, 0.95)

    def dropped(self) -> Tally:
        """Answers that change of the right ones that should."""
        return self._changed(
            self._round(cases.changed_by_drop(self._samples, self._seed), _ANSWER), Fault.DROPPED, 0.95
        )

    def letter_grid(self, kind: str, fault: Fault) -> Tally:
        """Right answers that change. Only in a dense grid does a place of the rows always stand for another letter."""
        return self._changed(self._letter_grids(kind), fault, 0.8 if kind == "grid-dense" else None)

    def first_tokens(self, fault: Fault) -> dict[str, list[float]]:
        """By family, how far each first token is from the healthy one, in nats; of NONE, from one of another run."""
        replies = iter(self._replies(self._first_tokens.questions, fault, _FIRST_TOKEN))
        healthy = iter(self._first_tokens.healthy)
        return {
            family: [distance(next(healthy), next(replies)) for _ in questions]
            for family, questions in self._by_family.items()
        }

    @cached_property
    def _by_family(self) -> dict[str, list[Question]]:
        return cases.of_every_family(self._per_family, self._seed)

    @cached_property
    def _first_tokens(self) -> Round:
        return self._round([question for questions in self._by_family.values() for question in questions], _FIRST_TOKEN)

    def _letter_grids(self, kind: str) -> Round:
        if kind not in self._grids:
            self._grids[kind] = self._round(cases.of_kind(kind, self._samples, self._seed), _ANSWER)
        return self._grids[kind]

    def _round(self, questions: Sequence[Question], asking: Asking) -> Round:
        return Round(questions, asking, self._replies(questions, Fault.NONE, asking))

    def _changed(self, round_: Round, fault: Fault, bound: float | None) -> Tally:
        replies = self._replies(round_.questions, fault, round_.asking)
        return changed(round_.healthy, replies, bound)

    def _replies(self, questions: Sequence[Question], fault: Fault, asking: Asking) -> list[Reply]:
        self._cluster.switch.set(fault)
        # Rows that the encoder keeps must not stand in for those that it would make now.
        return ask_all(self._cluster.url, questions, replace(asking, mark=fault))


def changed(healthy: Sequence[Reply], spoilt: Sequence[Reply], bound: float | None) -> Tally:
    """How many answers are others under a fault, of those that were right without it.

    A wrong answer that becomes another wrong one tells nothing about what the fault did to a right one.
    """
    pairs = [(one, other) for one, other in zip(healthy, spoilt, strict=True) if one.is_right]
    return Tally(sum(one.text != other.text for one, other in pairs), len(pairs), bound)


def caught(distances: Mapping[str, Sequence[float]]) -> dict[str, Tally]:
    """By family, how many first tokens differ by more than the tolerance."""
    return {
        family: Tally(sum(value > TOLERANCE for value in values), len(values), 0.99)
        for family, values in distances.items()
    }


def measure(bench: FaultBench) -> tuple[dict[str, Any], bool]:
    """All figures, JSON-ready, and whether every one is within its bound; prints them as they come."""
    noise = max(value for values in bench.first_tokens(Fault.NONE).values() for value in values)
    print(f"| noise between two healthy runs | first tokens, nats | {noise:.1e} | | {NOISE:.0e} |")
    tallies = {"swapped | answers that should change": bench.swapped()}
    tallies["dropped | answers that should change"] = bench.dropped()
    least: dict[str, float] = {}
    for fault in ON_PLACES:
        tallies |= {f"{fault} | answers, {kind}": bench.letter_grid(kind, fault) for kind in GRIDS}
        distances = bench.first_tokens(fault)
        tallies |= {f"{fault} | first tokens, {family}": tally for family, tally in caught(distances).items()}
        least |= {f"{fault} | first tokens, {family}": min(values) for family, values in distances.items()}
    for name, tally in tallies.items():
        print(_row(name, tally), flush=True)
    figures = {name: _figures(tally) | {"least_nats": least.get(name)} for name, tally in tallies.items()}
    within = noise < NOISE and all(tally.share >= tally.bound for tally in tallies.values() if tally.bound is not None)
    return {"tolerance_nats": TOLERANCE, "noise_nats": noise, "noticed": figures}, within


def _row(name: str, tally: Tally) -> str:
    low, high = wilson(tally)
    bound = "–" if tally.bound is None else f"≥ {100 * tally.bound:.0f} %"
    return f"| {name} | {tally.right} of {tally.total} | {100 * low:.1f}–{100 * high:.1f} | {bound} |"


def _figures(tally: Tally) -> dict[str, Any]:
    low, high = wilson(tally)
    shares = {"share": tally.share, "low": low, "high": high}
    rounded = {name: round(value, 4) for name, value in shares.items()}
    return {"noticed": tally.right, "total": tally.total, **rounded, "bound": tally.bound}


def main() -> int:
    parser = Parser(
        prog="python -m tests.tiny_vl.measure_faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--samples", type=whole(1), default=SAMPLES)
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--output", type=result_file)
    arguments = parser.parse_args()
    is_published = arguments.model == EMBEDDED and arguments.samples >= SAMPLES
    output = arguments.output or (RESULT if is_published else None)
    with tempfile.TemporaryDirectory() as folder:
        cluster = SpoiltCluster(arguments.model, Path(folder))
        try:
            figures, within = measure(FaultBench(cluster, arguments.model, arguments.samples, arguments.samples))
        finally:
            cluster.stop()
    what = {"script": "tests/tiny_vl/measure_faults.py", "model": named(arguments.model), "seed": SEED}
    what |= {"samples": arguments.samples, "topology": "e+p+d", "dtype": "float32"}
    if output is not None:
        measured = {"what": what, **provenance(), **figures}
        output.write_text(json.dumps(measured, indent=1, allow_nan=False) + "\n")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
