"""Ours beside the goals and vLLM's figures: verdicts over a result of bench/h200.py, and the table."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.h200_work import PARTS, START, START_GOAL, Goal

TABLE_WIDTH = 140  # where the output is no terminal


@dataclass(frozen=True, slots=True)
class Verdict:
    """One goal of one part and what was reached; `value` is None where the part has not run."""

    part: str
    what: str
    goal: Goal
    value: float | None
    holds: bool
    spoilt: str  # why the figure does not count: failed or short answers


def verdicts(result: Mapping[str, Any]) -> Iterator[Verdict]:
    """Of the start and of all parts in their order."""
    topology, parts = result["topology"], result["parts"]
    yield _verdict(START, "cold start", START_GOAL, parts.get(START), topology)
    for part in PARTS:
        entry = parts.get(part.name)
        for goal in part.goals:
            yield _verdict(part.name, part.what, goal, entry and entry["means"], topology)


def missed(result: Mapping[str, Any]) -> set[str]:
    """Parts that have run and keep not all of their goals."""
    return {verdict.part for verdict in verdicts(result) if verdict.value is not None and not verdict.holds}


def _verdict(part: str, what: str, goal: Goal, figures: Mapping[str, Any] | None, topology: str) -> Verdict:
    value = figure(figures, goal)
    spoilt = _spoilt(figures or {})
    return Verdict(part, what, goal, value, value is not None and not spoilt and goal.holds(value, topology), spoilt)


def figure(figures: Mapping[str, Any] | None, goal: Goal) -> float | None:
    """The goal's figure in its unit, where the part has one."""
    found: Any = figures
    for name in goal.path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return None if found is None else float(found) * goal.scale


def _spoilt(figures: Mapping[str, Any]) -> str:
    counts = {name: figures.get(name, 0) for name in ("errors", "short_replies")}
    return ", ".join(f"{name.replace('_', ' ')}: {count:g} a run" for name, count in counts.items() if count)


def show(result: Mapping[str, Any]) -> None:
    """Prints the table, and below it what a figure does not say."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else TABLE_WIDTH)
    where = "a dry run, whose figures mean nothing" if result.get("dry_run") else "one H200, Qwen2.5-VL-7B geometry"
    table = Table(title=f"{where}, {result['topology']}")
    for name in ("part", "", "figure", "ours", "goal", "vLLM", "vLLM split", ""):
        table.add_column(name, justify="right" if name in ("ours", "goal", "vLLM", "vLLM split") else "left")
    for verdict in verdicts(result):
        goal = verdict.goal
        table.add_row(
            *(verdict.part, verdict.what, f"{goal.name} {goal.unit}".strip(), _number(verdict.value, goal)),
            f"{'≤' if goal.at_most else '≥'} {_number(goal.bound(result['topology']), goal)}",
            *(goal.vllm, goal.vllm_split, _in_words(verdict)),
        )
    console.print(table)
    _show_more(result, console)


def _show_more(result: Mapping[str, Any], console: Console) -> None:
    if "warm_start_seconds" in result:
        console.print(f"start with the caches of the last one: {result['warm_start_seconds']:g} s")
    for name, entry in result["parts"].items():
        for run in entry.get("runs", []):
            if "realized_rate" in run:
                attained = run["slo"]["attainment"]
                rates = f"nominal {run['workload']['rate']:g}/s, realised {run['realized_rate']:g}/s"
                console.print(f"{name}, seed {run['workload']['seed']}: {rates}, attainment {attained:.3f}")
        _show_profile(name, entry.get("profile"), console)
    for name, failure in result.get("failed", {}).items():
        console.print(f"{name} FAILED: {failure['error'].strip().splitlines()[-1]}")


def _show_profile(name: str, profile: Mapping[str, Any] | None, console: Console) -> None:
    for worker, found in (profile or {}).items():
        if "busy_share" not in found:
            console.print(f"{name}, {worker}: no profile: {found}")
            continue
        console.print(
            f"{name}, {worker}: the GPU was busy for {found['busy_share']:.0%} of {found['traced_seconds']:.2f} s"
        )
        for kernel, calls, milliseconds in found["kernels"][:8]:
            console.print(f"    {milliseconds:9.1f} ms in {calls:6d} calls of {kernel[:90]}")


def _number(value: float | None, goal: Goal) -> str:
    if value is None or value == float("inf"):
        return "–"
    return f"{value:.{goal.digits}f}"


def _in_words(verdict: Verdict) -> str:
    if verdict.value is None:
        return "not run"
    if verdict.spoilt:
        return f"SPOILT ({verdict.spoilt})"
    return "holds" if verdict.holds else "MISSED"
