"""python -m tests.cluster.fault_table: what each fault costs a cluster under load; exit code 1 if anything was wrong.

Prints a table in Markdown, writes bench/results/fault-table.json.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.cluster.fault_kinds import KINDS, Kind
from tests.cluster.fault_load import LONG, QUESTIONS, right_answers
from tests.cluster.fault_rows import IN_FLIGHT, Row, measure, too_many_retries
from tests.cluster.fault_server import ROUTERS, WORKERS_OF_EACH_TIER, FaultServer, Patience
from triptych.loadgen.provenance import provenance

RESULTS = Path(__file__).resolve().parent.parent.parent / "bench/results/fault-table.json"
_HEAD = (
    *("what happens", "longest pause of a stream, s", "all ready again, s", "idle after, s", "requests", "failed"),
    *("wrong", "twice or missing", "encoded again", "retries", "left"),
)


def rounds(server: FaultServer, kinds: Sequence[Kind], number: int, tell: Callable[[Row], None]) -> list[Row]:
    """Each kind so often, one after the other."""
    right = right_answers(server.url, server.headers, (*QUESTIONS, LONG))
    rows = []
    for kind in [kind for _ in range(number) for kind in kinds]:
        rows.append(measure(server, kind, right))
        tell(rows[-1])
    return rows


def table(rows: Sequence[Row]) -> str:
    """A line for each kind: medians, and in brackets the worst, of times; sums of everything else."""
    lines = [_HEAD, ["---"] * len(_HEAD)]
    for kind in dict.fromkeys(row.kind for row in rows):
        of_kind = [row for row in rows if row.kind == kind]
        retries = sum((Counter(row.retries) for row in of_kind), Counter[str]())
        lines.append(
            [
                kind,
                *(_times([getattr(row, name) for row in of_kind]) for name in ("pause", "ready", "idle")),
                str(sum(row.asked for row in of_kind)),
                str(sum(len(row.failed) for row in of_kind)),
                *(str(sum(getattr(row, name) for row in of_kind)) for name in ("wrong", "twice_or_missing")),
                str(sum(max(0, row.again) for row in of_kind)),
                ", ".join(f"{count} {stage}" for stage, count in sorted(retries.items())) or "0",
                str(sum(len(row.left) for row in of_kind)),
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def complaints(rows: Sequence[Row]) -> list[str]:
    storm = too_many_retries(rows)
    return [*(each for row in rows for each in row.complaints()), *([storm] if storm else [])]


def _times(seconds: Iterable[float]) -> str:
    known = sorted(seconds)
    median = f"{statistics.median(known):.2g}" if known[-1] < 10 else f"{statistics.median(known):.0f}"
    return f"{median} ({known[-1]:.1f})" if len(known) > 1 else median


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.cluster.fault_table", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="of all kinds")
    parser.add_argument("--only", default="", help="of these kinds: a part of the name")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    kinds = [kind for kind in KINDS if options.only in kind.name]
    rows: list[Row] = []
    began = time.monotonic()

    def tell(row: Row) -> None:
        rows.append(row)
        print(f"{time.monotonic() - began:6.0f} s  {row}", file=sys.stderr, flush=True)

    folder = Path(tempfile.mkdtemp(prefix="triptych-fault-table-"))
    print(f"logs are in {folder}", file=sys.stderr)
    try:
        with FaultServer(folder, Patience()) as server:
            rounds(server, kinds, options.rounds, tell)
    finally:
        found = complaints(rows)
        workers = {"of_each_tier": WORKERS_OF_EACH_TIER, "routers": ROUTERS, "in_flight": IN_FLIGHT}
        told = {"provenance": provenance(), "cluster": workers, "rows": [asdict(row) for row in rows]}
        options.output.write_text(json.dumps({**told, "complaints": found}, indent=1) + "\n")
        print(table(rows))
        for each in found:
            print(f"WRONG: {each}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
