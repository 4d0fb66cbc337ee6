"""Intervals against known values; how often the rule complains about models that it should, and should not."""

import math
import random
from collections import Counter
from collections.abc import Mapping

import pytest

from tests.tiny_vl.sample_plan import LEAST_PER_KIND, planned
from tools.tiny_vl.families import KINDS
from tools.tiny_vl.intervals import Tally, chance_of_so_few, complaints, merged, wilson


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [(50, 100, 0.4038, 0.5962), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (970, 1000, 0.9575, 0.9789)],
)
def test_wilson_intervals_are_those_of_the_tables(right: int, total: int, low: float, high: float) -> None:
    assert wilson(Tally(right, total)) == pytest.approx((low, high), abs=1e-4)


def test_nothing_asked_says_nothing() -> None:
    assert wilson(Tally(0, 0)) == (0.0, 1.0)
    assert math.isnan(Tally(0, 0).share)


def test_nothing_asked_is_complained_about() -> None:
    assert complaints({}) == complaints({"reading": {}}) == ["all families: nothing was asked"]
    asked = {"reading": {"read": Tally(9, 9, 0.97), "read-words": Tally(0, 0, 0.97)}}
    assert complaints(asked) == ["reading/read-words: nothing was asked"]


def test_every_kind_with_a_bound_can_be_complained_about_by_itself() -> None:
    counts = Counter(kind.name for kind, _ in planned())
    assert sum(counts.values()) == 300
    assert set(counts) == set(KINDS)
    for name, kind in KINDS.items():
        if kind.bound is None:
            continue
        assert counts[name] >= LEAST_PER_KIND
        healthy = answers(random.Random(1), dict.fromkeys(KINDS, 1.0))
        healthy[kind.family][name] = Tally(0, counts[name], kind.bound)
        assert any(said.startswith(f"{kind.family}/{name}:") for said in complaints(healthy)), name


def test_the_chance_of_so_few_is_exact() -> None:
    assert chance_of_so_few([Tally(1, 2, 0.5)]) == pytest.approx(0.75)
    assert chance_of_so_few([Tally(1, 1, 0.5), Tally(0, 1, 0.9)]) == pytest.approx(1 - 0.45)
    assert chance_of_so_few([Tally(2, 2, 0.5), Tally(0, 9, None)]) == pytest.approx(1.0)


def test_a_merged_tally_has_the_mean_bound_and_none_where_one_has_none() -> None:
    assert merged([Tally(1, 3, 0.9), Tally(1, 1, 0.5)]) == Tally(2, 4, pytest.approx(0.8))  # type: ignore[arg-type]
    assert merged([Tally(1, 3, 0.9), Tally(1, 1)]).bound is None


def answers(rng: random.Random, changed: Mapping[str, float], less: float = 0.0) -> dict[str, dict[str, Tally]]:
    """300 answers of a model that is at its bounds, less so much, but for the kinds and families in `changed`."""
    tallies: dict[str, dict[str, Tally]] = {}
    for kind, _ in planned():
        of = tallies.setdefault(kind.family, {})
        share = changed.get(kind.name, changed.get(kind.family, (kind.bound or 1.0) - less))
        before = of.get(kind.name, Tally(0, 0, kind.bound))
        of[kind.name] = Tally(before.right + (rng.random() < share), before.total + 1, kind.bound)
    return tallies


def complained(changed: Mapping[str, float], runs: int, less: float = 0.0) -> float:
    """Share of runs in which something is complained about."""
    rng = random.Random(3)
    return sum(bool(complaints(answers(rng, changed, less))) for _ in range(runs)) / runs


def test_a_model_at_its_bounds_is_seldom_complained_about() -> None:
    assert complained({}, runs=300) <= 8 / 300  # of 1 in 100, more than 8 would come once in 250 times


def test_a_broken_family_a_broken_kind_and_a_model_that_is_too_weak_all_over_are_noticed() -> None:
    assert complained({"receipt": 0.4}, runs=20) > 0.9
    assert complained({"left-of": 0.0}, runs=20) > 0.9
    assert complained({"blank": 0.5}, runs=20) > 0.9
    assert complained({}, runs=20, less=0.07) > 0.9
