"""Which questions make up the 300 that `make test` asks."""

from collections.abc import Iterator

from tools.tiny_vl.families import FAMILIES, Kind

PER_FAMILY, PER_REPORTED_FAMILY = 23, 6


def planned() -> Iterator[tuple[Kind, int]]:
    """Kind and index of each question; the kinds of a family take turns."""
    for kinds in FAMILIES.values():
        for number in range(PER_FAMILY if kinds[0].bound else PER_REPORTED_FAMILY):
            yield kinds[number % len(kinds)], number // len(kinds)
