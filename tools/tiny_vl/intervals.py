"""How much a share of right answers is worth: intervals to report, and the rule that lets a sample fail a model."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_Z_95 = 1.959964  # half of the standard normal's mass between -z and z is 0.95
# How a sample's risk of a false alarm is spent: on the whole, on all families together, on all kinds together.
_WHOLE, _FAMILIES, _KINDS = 0.4, 0.3, 0.3


@dataclass(frozen=True, slots=True)
class Tally:
    """Right answers of some that were asked, and the share that must be right (None: reported only)."""

    right: int
    total: int
    bound: float | None = None

    @property
    def share(self) -> float:
        """NaN where nothing was asked."""
        return self.right / self.total if self.total else math.nan


def wilson(tally: Tally) -> tuple[float, float]:
    """The 95 % interval of the share behind a tally, after Wilson; holds at 0 and 1 too, where the usual one fails."""
    if not tally.total:
        return 0.0, 1.0
    n, share, z2 = tally.total, tally.share, _Z_95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z_95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def chance_of_so_few(tallies: Sequence[Tally]) -> float:
    """How likely a model exactly at every tally's bound gets no more right, all in all, than these did.

    Exact: a sum of binomials with shares of their own. Tallies without a bound do not count.
    """
    counted = [tally for tally in tallies if tally.bound is not None]
    right = sum(tally.right for tally in counted)
    chances = [1.0]  # of each number of right answers
    for tally in counted:
        chances = _convolved(chances, _binomial(tally.total, tally.bound or 0.0))
    return math.fsum(chances[: right + 1])


def complaints(tallies: Mapping[str, Mapping[str, Tally]], false_alarm: float = 0.01) -> list[str]:
    """What a sample holds against a model, in words; empty when nothing does.

    tallies: family -> kind -> tally
    false_alarm: how likely, at most, a model exactly at all of its bounds is complained about

    Asked are: all answers together, each family, each kind. One of them is complained about when its count of right
    answers would be rarer, from a model exactly at the bounds, than its part of false_alarm: 4/10 for the whole, 3/10
    split evenly among the families, 3/10 among the kinds (by Bonferroni the parts add up, however they depend on each
    other). With the 300 questions of `make test` the whole may fall 3.5 points short of its mean bound, a family of 18
    at 0.96 may miss 5, a kind of 4 may miss 2 at 0.98 and 3 at 0.96: what is broken shows, what is a point too low
    shows in larger samples. Where nothing was asked, that is complained about.
    """
    unasked = nothing_asked(tallies)
    if unasked:
        return [f"{name}: nothing was asked" for name in unasked]
    kinds = {f"{family}/{kind}": [tally] for family, of in tallies.items() for kind, tally in of.items() if tally.bound}
    families = {family: list(of.values()) for family, of in tallies.items() if any(t.bound for t in of.values())}
    whole = {"all families": [tally for of in families.values() for tally in of]}
    parts = ((whole, _WHOLE), (families, _FAMILIES), (kinds, _KINDS))
    return [
        _in_words(name, group, chance)
        for groups, part in parts
        for name, group in groups.items()
        if (chance := chance_of_so_few(group)) < false_alarm * part / len(groups)
    ]


def nothing_asked(tallies: Mapping[str, Mapping[str, Tally]]) -> list[str]:
    """Names of what was to be asked and was not."""
    if not any(tallies.values()):
        return ["all families"]
    return [f"{family}/{kind}" for family, of in tallies.items() for kind, tally in of.items() if not tally.total]


def merged(tallies: Iterable[Tally]) -> Tally:
    """All answers as one tally; the bound is the mean of the bounds, weighted by how often each was asked."""
    found = list(tallies)
    total = sum(tally.total for tally in found)
    bounds = [tally.bound for tally in found if tally.bound is not None]
    bound = None
    if total and len(bounds) == len(found):
        # Equal ones stay what they are to the last digit: shares are compared with them.
        weighted = sum(value * tally.total for value, tally in zip(bounds, found, strict=True)) / total
        bound = bounds[0] if len(set(bounds)) == 1 else weighted
    return Tally(sum(tally.right for tally in found), total, bound)


def _binomial(total: int, share: float) -> list[float]:
    """The chance of each number of successes, 0 to total."""
    return [math.comb(total, right) * share**right * (1 - share) ** (total - right) for right in range(total + 1)]


def _convolved(first: Sequence[float], second: Sequence[float]) -> list[float]:
    made = [0.0] * (len(first) + len(second) - 1)
    for i, left in enumerate(first):
        for j, right in enumerate(second):
            made[i + j] += left * right
    return made


def _in_words(name: str, group: Sequence[Tally], chance: float) -> str:
    tally = merged(entry for entry in group if entry.bound is not None)
    return (
        f"{name}: {tally.right} of {tally.total} right, expected a share of {tally.bound:.3f}; "
        f"a model that has it gets so few with a chance of {chance:.1e}"
    )
