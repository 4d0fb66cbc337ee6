"""Exact match of a served model on fresh questions of every kind: python -m tools.tiny_vl evaluate [--samples 1000].

Starts `triptych serve` in three tiers, float32 on the CPU, unless --url names a server. Answers are greedy, asked over
HTTP, and right only when equal to the letter and ended by the model. A family is below its bound when the mean of its
answers is, or when one of its kinds is beyond doubt: its 95 % interval lies below the bound as a whole.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.server import Server
from tools.tiny_vl.exam import Asking, Reply, ask_all, draw_question
from tools.tiny_vl.families import FAMILIES, Kind
from tools.tiny_vl.intervals import Tally, merged, wilson
from tools.tiny_vl.scenes import Turn
from tools.tiny_vl.table import markdown, worst_kind
from triptych.loadgen.provenance import provenance

Families = Mapping[str, tuple[Kind, ...]]

RESULT = Path(__file__).resolve().parents[2] / "bench/results/tiny_vl_accuracy.json"
SEED = 20_000
_LEAST_PART = 4  # a kind gets at least this part of its family's samples, however many kinds the family has
_SHOWN_WRONG = 8
# Three workers that are all busy get more done with a thread each than with as many as there are cores.
_SETTINGS = "[serve]\ncpu_threads = 1\n[router]\nlog_level = 'warning'\n"
_ASKING = Asking(in_flight=32)


@dataclass(slots=True)
class Results:
    """Tallies and some wrong answers of the kinds asked so far, and how long it took.

    wrong: by kind, the first few
    """

    tallies: dict[str, dict[str, Tally]] = field(default_factory=dict)
    wrong: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    requests: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds if self.seconds else math.nan

    def add(self, kind: Kind, replies: Sequence[Reply], seconds: float) -> None:
        right = sum(reply.is_right for reply in replies)
        self.tallies.setdefault(kind.family, {})[kind.name] = Tally(right, len(replies), kind.bound)
        self.wrong[kind.name] = [_in_words(reply) for reply in replies if not reply.is_right][:_SHOWN_WRONG]
        self.requests += len(replies)
        self.seconds += seconds

    def below_bounds(self) -> list[str]:
        """Families that are below their bounds, with the figure that says so."""
        found = []
        for family, kinds in self.tallies.items():
            mean = merged(kinds.values())
            if mean.bound is None:
                continue
            if mean.share < mean.bound:
                found.append(f"{family}: {mean.share:.3f}, bound {mean.bound}")
            beneath = [name for name, tally in kinds.items() if wilson(tally)[1] < mean.bound]
            found += [f"{family}/{name}: {kinds[name].share:.3f}, bound {mean.bound}" for name in beneath]
        return found

    def to_json(self) -> dict[str, Any]:
        families = {}
        for family, kinds in self.tallies.items():
            entry = _figures(merged(kinds.values())) | {"worst_kind": worst_kind(kinds)}
            entry["kinds"] = {name: _figures(tally) | {"wrong": self.wrong[name]} for name, tally in kinds.items()}
            families[family] = entry
        return {"requests": self.requests, "requests_per_second": round(self.rate, 2), "families": families}


def share_out(per_family: int, kinds: Sequence[Kind]) -> dict[str, int]:
    """How many samples of each kind; at least per_family in all."""
    each = max(math.ceil(per_family / len(kinds)), math.ceil(per_family / _LEAST_PART) if len(kinds) > 1 else 0)
    return {kind.name: each for kind in kinds}


def evaluate(url: str, per_family: int, seed: int, families: Families = FAMILIES, held_out: bool = False) -> Results:
    """Ask every kind of these families; says on standard error how each did."""
    results = Results()
    for kinds in families.values():
        counts = share_out(per_family, kinds)
        for kind in kinds:
            began = time.monotonic()
            questions = (draw_question(kind.name, seed, index, held_out) for index in range(counts[kind.name]))
            replies = ask_all(url, questions, _ASKING)
            results.add(kind, replies, time.monotonic() - began)
            tally = results.tallies[kind.family][kind.name]
            print(f"{kind.family}/{kind.name}: {tally.right} of {tally.total}", file=sys.stderr, flush=True)
    return results


def run(arguments: argparse.Namespace) -> int:
    """Print the model card's table, write the figures; 1 when a family is below its bound."""
    families = {name: FAMILIES[name] for name in arguments.families or FAMILIES}
    with _served(arguments.url, arguments.model) as url:
        results = evaluate(url, arguments.samples, arguments.seed, families, arguments.held_out)
    print(markdown(results.tallies))
    print(f"{results.requests} requests, {results.rate:.1f} a second", file=sys.stderr)
    output = arguments.output or (None if arguments.families or arguments.held_out else RESULT)
    if output is not None:
        what = {"script": "tools/tiny_vl/evaluate.py", "model": Path(arguments.model).name, "topology": "e+p+d"}
        what |= {"dtype": "float32", "seed": arguments.seed, "samples_per_family": arguments.samples}
        what |= {"held_out": arguments.held_out}
        output.write_text(json.dumps({"what": what, **provenance(), **results.to_json()}, indent=1) + "\n")
    below = results.below_bounds()
    for line in below:
        print(f"below its bound: {line}", file=sys.stderr)
    return 1 if below else 0


@contextmanager
def _served(url: str | None, model: str) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "settings.toml"
        config.write_text(_SETTINGS)
        flags = ("--device", "cpu", "--dtype", "float32", "--config", str(config))
        with Server("e+p+d", model, flags) as server:
            yield server.url


def _figures(tally: Tally) -> dict[str, Any]:
    low, high = wilson(tally)
    shares = {"share": tally.share, "low": low, "high": high}
    rounded = {name: round(value, 4) for name, value in shares.items()}
    return {"right": tally.right, "total": tally.total, **rounded, "bound": tally.bound}


def _in_words(reply: Reply) -> dict[str, str]:
    turn = reply.sample.turns[-1]
    ending = "" if reply.ended else " …"
    return {"asked": _text(turn), "expected": turn.answer, "answered": reply.text + ending}


def _text(turn: Turn) -> str:
    """The turn with pictures told by what they show."""
    return "".join(part if isinstance(part, str) else f"[{part.scene}]" for part in turn.parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1000, help="of each family (default: 1000)")
    parser.add_argument("--families", nargs="+", choices=sorted(FAMILIES), help="only these; writes no file by default")
    parser.add_argument("--held-out", action="store_true", help="phrasings and typefaces that training has none of")
    parser.add_argument("--url", help="a server that is running (default: start one)")
    parser.add_argument("--model", default="tiny-vl", help="what to serve: the embedded model or a folder")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--output", type=Path, help=f"where the figures go (default: {RESULT.name} in bench/results)")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
