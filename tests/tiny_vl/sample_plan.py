"""Which questions make up the 300 that `make test` asks."""

from collections.abc import Iterator

from tools.tiny_vl.families import FAMILIES, Kind

PER_FAMILY, PER_REPORTED_FAMILY = 18, 8
# Of each kind that is held to a bound: with fewer, all of them wrong is hardly rare enough to count by itself.
LEAST_PER_KIND = 4


def planned() -> Iterator[tuple[Kind, int]]:
    """Kind and index of each question; the kinds of a family take turns."""
    for kinds in FAMILIES.values():
        number = max(PER_FAMILY, LEAST_PER_KIND * len(kinds)) if kinds[0].bound else PER_REPORTED_FAMILY
        for turn in range(number):
            yield kinds[turn % len(kinds)], turn // len(kinds)
