"""Exact match of a served model on fresh questions of every kind: python -m tools.tiny_vl evaluate [--samples 1000].

Starts `triptych serve` in three tiers, float32 on the CPU, unless --url names a server. Answers are greedy, asked over
HTTP, and right only when equal to the letter and ended by the model. A family is below its bound when the mean of its
answers is, or when one of its kinds is beyond doubt: its 95 % interval lies below the bound as a whole. Held-out
phrasings and typefaces have no bounds. Exit code 1: below a bound; 2: nothing was measured, and the last line says why.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.server import Server
from tools.tiny_vl.exam import Asking, Reply, ServerFailed, ask_all, draw_question, model_at
from tools.tiny_vl.families import FAMILIES, Kind
from tools.tiny_vl.intervals import Tally, merged, nothing_asked, wilson
from tools.tiny_vl.options import Parser, result_file, server_url, whole
from tools.tiny_vl.scenes import Turn
from tools.tiny_vl.table import family_markdown, markdown, worst_kind
from triptych.loadgen.provenance import provenance

Families = Mapping[str, tuple[Kind, ...]]

_RESULTS = Path(__file__).resolve().parents[2] / "bench/results"
ACCURACY, HELD_OUT = _RESULTS / "tiny_vl_accuracy.json", _RESULTS / "tiny_vl_held_out.json"
EMBEDDED = "tiny-vl"
# Of each family, that the model card speaks of.
LEAST_ACCURACY, LEAST_HELD_OUT = 1000, 100
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
        """Families that are below their bounds, with the figure that says so; what was not asked is below any."""
        found = [f"{name}: nothing was asked" for name in nothing_asked(self.tallies)]
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
    """How many samples of each kind; at least per_family in all.

    Raises ValueError for less than one.
    """
    if per_family < 1:
        raise ValueError(f"{per_family} samples of each family, expected at least 1")
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
    """Print the model card's table, write the figures; 1 when a family is below its bound.

    Raises ServerFailed.
    """
    families = {name: FAMILIES[name] for name in arguments.families or FAMILIES}
    if arguments.held_out:
        families = {name: tuple(replace(kind, bound=None) for kind in kinds) for name, kinds in families.items()}
    with _served(arguments.url, arguments.model) as (url, served):
        results = evaluate(url, arguments.samples, arguments.seed, families, arguments.held_out)
    print(family_markdown(results.tallies) if arguments.held_out else markdown(results.tallies))
    print(f"{results.requests} requests, {results.rate:.1f} a second", file=sys.stderr)
    output = arguments.output or published(arguments)
    if output is None:
        print("written to no file: --output names one", file=sys.stderr)
    else:
        what = {"script": "tools/tiny_vl/evaluate.py", **served, "seed": arguments.seed}
        what |= {"samples_per_family": arguments.samples, "held_out": arguments.held_out}
        measured = {"what": what, **provenance(), **results.to_json()}
        output.write_text(json.dumps(measured, indent=1, allow_nan=False) + "\n")
    below = results.below_bounds()
    for line in below:
        print(f"below its bound: {line}", file=sys.stderr)
    return 1 if below else 0


def published(arguments: argparse.Namespace) -> Path | None:
    """The file that the model card reads these figures from, if they are what it speaks of; None for all others."""
    if arguments.url is not None or arguments.model != EMBEDDED or arguments.families:
        return None
    file, least = (HELD_OUT, LEAST_HELD_OUT) if arguments.held_out else (ACCURACY, LEAST_ACCURACY)
    return file if arguments.samples >= least else None


@contextmanager
def _served(url: str | None, model: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A server's address, and what is known about it."""
    if url is not None:
        yield url, {"url": url, "model": model_at(url), "topology": "unknown", "dtype": "unknown"}
        return
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "settings.toml"
        config.write_text(_SETTINGS)
        flags = ("--device", "cpu", "--dtype", "float32", "--config", str(config))
        with ExitStack() as stack:
            try:
                server = stack.enter_context(Server("e+p+d", model, flags))
            except RuntimeError as error:
                raise ServerFailed(f"{model} is not served: {str(error).splitlines()[-1]}") from error
            yield server.url, {"model": named(model), "topology": "e+p+d", "dtype": "float32"}


def named(model: str) -> str:
    """What to call a model in a result: without its path, which is of interest on one machine only."""
    if model == EMBEDDED or not Path(model).is_dir():
        return model
    return f"the folder {Path(model).resolve().name}"


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


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="python -m tools.tiny_vl evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--samples", type=whole(1), default=LEAST_ACCURACY, help="of each family (default: 1000)")
    made.add_argument("--families", nargs="+", choices=sorted(FAMILIES), help="only these")
    made.add_argument("--held-out", action="store_true", help="phrasings and typefaces that training has none of")
    asked = made.add_mutually_exclusive_group()
    asked.add_argument("--url", type=server_url, help="a server that is running (default: start one)")
    asked.add_argument("--model", default=EMBEDDED, help="what to serve: the embedded model or a folder")
    made.add_argument("--seed", type=int, default=SEED)
    made.add_argument(
        "--output",
        type=result_file,
        help="where the figures go (default: to bench/results if they are of the embedded model, all families and at "
        f"least {LEAST_ACCURACY} samples, held out {LEAST_HELD_OUT}; else nowhere)",
    )
    return made


def main() -> int:
    arguments = parser().parse_args()
    try:
        return run(arguments)
    except ServerFailed as error:
        print(f"nothing measured: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
