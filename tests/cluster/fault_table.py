"""python -m tests.cluster.fault_table: what each fault costs a cluster under load; exit code 1 if anything was wrong.

Prints a table in Markdown, writes the results after each fault. A run that was stopped, or had --seconds, goes on with
--resume: what has been measured least often comes next.

Faults of processes have a server on this machine; those of hosts have hosts made of namespaces, so root.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

from tests.cluster.fault_hosts import HOST_KINDS, hosts_server
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
_PLACES = {"processes": KINDS, "hosts": HOST_KINDS}


class Results:
    """The file with what has been measured: read where a run goes on, written after each row."""

    def __init__(self, path: Path, resume: bool) -> None:
        self._path = path
        known: dict[str, Any] = json.loads(path.read_text()) if resume and path.exists() else {}
        self.rows = [Row(**row) for row in known.get("rows", ())]
        self._runs = [*known.get("runs", ()), {"rows_before": len(self.rows), **provenance()}]

    def add(self, row: Row) -> None:
        self.rows.append(row)
        cluster = {"of_each_tier": WORKERS_OF_EACH_TIER, "routers": ROUTERS, "in_flight": IN_FLIGHT}
        told = {"runs": self._runs, "cluster": cluster, "rows": [asdict(row) for row in self.rows]}
        self._path.write_text(json.dumps({**told, "complaints": complaints(self.rows)}, indent=1) + "\n")

    def next_of(self, kinds: Sequence[Kind], rounds: int) -> Kind | None:
        """Who has been measured least often; None once each has so many rows."""
        counts = Counter(row.kind for row in self.rows)
        least = min(kinds, key=lambda kind: counts[kind.name])
        return least if counts[least.name] < rounds else None


def run(server: FaultServer, kinds: Sequence[Kind], rounds: int, ends_at: float, results: Results) -> None:
    """One fault after the other; none is begun after `ends_at`, of time.monotonic."""
    right = right_answers(server.url, server.headers, (*QUESTIONS, LONG))
    began = time.monotonic()
    while time.monotonic() < ends_at and (kind := results.next_of(kinds, rounds)) is not None:
        results.add(measure(server, kind, right))
        print(f"{time.monotonic() - began:6.0f} s  {results.rows[-1]}", file=sys.stderr, flush=True)


def table(rows: Sequence[Row]) -> str:
    """A line for each kind: medians, and in brackets the worst, of times; sums of everything else."""
    lines = [_HEAD, ["---"] * len(_HEAD)]
    order = [kind.name for kinds in _PLACES.values() for kind in kinds]
    known = [name for name in order if any(row.kind == name for row in rows)]
    for kind in dict.fromkeys([*known, *(row.kind for row in rows)]):
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
    parser.add_argument("--rounds", type=int, default=1, help="of all kinds, those that the results have included")
    parser.add_argument("--seconds", type=float, default=inf, help="after which no other fault is begun")
    parser.add_argument("--only", nargs="+", default=[""], help="of these kinds: parts of their names")
    parser.add_argument(
        "--place", choices=_PLACES, help="only what happens there; left out: first to hosts, then to processes"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--resume", action="store_true", help="go on with the results that there are")
    options = parser.parse_args()
    if options.place is None:
        sys.exit(_everywhere(options))
    results = Results(options.output, options.resume)
    kinds = [kind for kind in _PLACES[options.place] if any(part in kind.name for part in options.only)]
    if kinds and results.next_of(kinds, options.rounds) is not None:
        folder = Path(tempfile.mkdtemp(prefix="triptych-fault-table-"))
        print(f"logs are in {folder}", file=sys.stderr)
        ends_at = time.monotonic() + options.seconds
        make: Any = hosts_server if options.place == "hosts" else FaultServer
        opened: AbstractContextManager[FaultServer] = make(folder, Patience())
        with opened as server:
            run(server, kinds, options.rounds, ends_at, results)


def _everywhere(options: argparse.Namespace) -> int:
    """A process for each place, as one of them leaves this machine's network. The exit code."""
    if not options.resume:
        options.output.unlink(missing_ok=True)
    ends_at, status = time.monotonic() + options.seconds, 0
    for place in reversed(_PLACES):
        seconds = max(0.0, ends_at - time.monotonic()) / (2 if place == "hosts" else 1)
        command = [sys.executable, "-m", "tests.cluster.fault_table", "--place", place, "--resume"]
        command += ["--rounds", str(options.rounds), "--seconds", str(seconds), "--only", *options.only]
        status |= subprocess.run([*command, "--output", str(options.output)], check=False).returncode
    rows = Results(options.output, resume=True).rows
    print(table(rows))
    for each in (found := complaints(rows)):
        print(f"WRONG: {each}")
    return int(bool(found or status))


if __name__ == "__main__":
    main()
