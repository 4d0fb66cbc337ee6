"""Faults of each kind, under load, with a server that bears silence for seconds only: they cost a pause at most."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.cluster.fault_kinds import KINDS, all_at_once
from tests.cluster.fault_load import LONG, QUESTIONS, Asked, right_answers
from tests.cluster.fault_rows import Right, Row, compared, measure, too_many_retries
from tests.cluster.fault_server import QUICK, FaultServer
from tests.cluster.fault_table import RESULTS, Results, table

TIMES_AS_LONG = 5  # as was measured when the table was made
SHORTEST_BOUND_SECONDS = 10.0
# A worker of each tier goes at a time, so that what takes its place loads beside the others': what happens to a process
# happens to one of every tier. `make nightly` does each fault to each tier, and alone.
GOES_AT_A_TIME = (
    (
        "decode worker killed at token 30, encoders' caches cleared",
        "encode worker stopped",
        "prefill worker gets SIGTERM",
    ),
    ("encode worker killed", "prefill worker stays at one step", "decode worker gets SIGTERM"),
    ("router killed, one of two",),
    ("router process stopped, one of two",),
    ("clients leave",),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultServer]:
    with FaultServer(tmp_path_factory.mktemp("faults"), QUICK) as server:
        yield server


@pytest.fixture(scope="module")
def right(server: FaultServer) -> Right:
    return right_answers(server.url, server.headers, (*QUESTIONS, LONG))


def bound(kinds: Sequence[str], name: str) -> float:
    measured = [row[name] for row in json.loads(RESULTS.read_text())["rows"] if row["kind"] in kinds]
    return max(SHORTEST_BOUND_SECONDS, TIMES_AS_LONG * max(measured))


@pytest.mark.slow
@pytest.mark.parametrize("kinds", GOES_AT_A_TIME, ids=" + ".join)
def test_faults_cost_a_pause_and_nothing_else(server: FaultServer, right: Right, kinds: Sequence[str]) -> None:
    found = {kind.name: kind for kind in KINDS}
    chosen = [found[name] for name in kinds]
    row = measure(server, chosen[0] if len(chosen) == 1 else all_at_once(*chosen), right)
    assert row.complaints() == []
    for name in ("pause", "ready", "idle"):
        assert getattr(row, name) < bound(kinds, name), (name, row)


def row_of(**fields: object) -> Row:
    """Of a fault that cost nothing, but for these."""
    times = dict.fromkeys(("pause", "ready", "idle"), 1.0)
    counts = dict.fromkeys(("wrong", "twice_or_missing", "again", "lost_items", "most_retries"), 0)
    lists = {"failed": [], "left": [], "retries": {}, "may_retry": ["encode", "prefill", "decode"]}
    return Row(**{"kind": "k", "asked": 100, "in_flight": 4, **times, **counts, **lists, **fields})  # type: ignore[arg-type]


def test_whatever_must_not_be_is_told() -> None:
    assert row_of().complaints() == []
    for fields, told in (
        ({"wrong": 1}, "k: wrong: 1"),
        ({"twice_or_missing": 2}, "k: twice_or_missing: 2"),
        ({"again": 3, "lost_items": 2}, "k: again: 3"),
        ({"most_retries": 2}, "k: most_retries: 2"),
        ({"retries": {"decode": 1}, "may_retry": ["encode"]}, "k: retries: {'decode': 1}"),
        ({"failed": ["503"]}, "k: failed: 503"),
        ({"left": ["decode-0: 3 blocks"]}, "k: left: decode-0: 3 blocks"),
        ({"failed": ["x"] * 5, "may_break": True}, "k: failed: x"),
    ):
        assert told in row_of(**fields).complaints()
    assert row_of(again=2, lost_items=2).complaints() == []
    assert row_of(failed=["x"] * 4, may_break=True).complaints() == []


def test_answers_are_compared_token_by_token_as_far_as_they_go() -> None:
    def told(ids: list[int], text: str, error: str = "") -> tuple[int, int]:
        asked = Asked(LONG, 0.0, ids=ids, text=text, error=error)
        return compared([asked], lambda question: ([1, 2, 3], "abc"))

    assert told([1, 2, 3], "abc") == (0, 0)
    assert told([1, 2, 4], "abc") == told([1, 2, 3], "abd") == (1, 0)
    assert told([1, 2, 2, 3], "abbc") == told([1, 3], "ac") == (0, 1)
    assert told([1, 2], "ab", error="it ended early") == (0, 0)
    assert told([1, 3], "ac", error="it ended early") == (1, 0)


def test_a_pause_is_a_silence_that_the_fault_may_have_to_do_with() -> None:
    asked = Asked(LONG, 10.0, at=[12.0, 13.0, 18.0, 19.0])
    assert asked.pause(since=11.0, until=14.0) == 5.0
    assert asked.pause(since=11.0, until=12.5) == 2.0
    assert asked.pause(since=18.5, until=30.0) == 1.0
    assert asked.pause(since=19.0, until=30.0) == 0.0


def test_retries_are_counted_against_all_traffic_once_there_is_some() -> None:
    assert too_many_retries([row_of(retries={"decode": 50})]) == ""
    assert too_many_retries([row_of(retries={"decode": 10}), row_of(retries={"encode": 10})]) == ""
    assert (
        too_many_retries([row_of(retries={"decode": 10}), row_of(retries={"encode": 11})])
        == "21 retries of 200 requests"
    )


def test_a_run_that_was_stopped_goes_on_with_what_was_measured_least_often(tmp_path: Path) -> None:
    kinds, file = KINDS[:3], tmp_path / "rows.json"
    first = Results(file, resume=False)
    for _ in range(4):
        kind = first.next_of(kinds, rounds=2)
        assert kind is not None
        first.add(row_of(kind=kind.name))
    second = Results(file, resume=True)
    assert second.rows == first.rows
    while (kind := second.next_of(kinds, rounds=2)) is not None:
        second.add(row_of(kind=kind.name))
    names = [kind.name for kind in kinds]
    assert [row.kind for row in second.rows] == [*names, *names]
    assert [run["rows_before"] for run in json.loads(file.read_text())["runs"]] == [0, 4]
    assert Results(file, resume=False).rows == []


def test_the_table_has_medians_and_worst_times_and_sums() -> None:
    lines = table(
        [row_of(retries={"decode": 2}), row_of(pause=3.0, retries={"decode": 1}), row_of(kind="l")]
    ).splitlines()
    assert lines[2] == "| k | 2 (3.0) | 1 (1.0) | 1 (1.0) | 200 | 0 | 0 | 0 | 0 | 3 decode | 0 |"
    assert lines[3] == "| l | 1 | 1 | 1 | 100 | 0 | 0 | 0 | 0 | 0 | 0 |"
