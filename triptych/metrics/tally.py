"""Observations of histograms, taken down at once and booked later, many at a time.

Where several routers count in files, one observation costs a histogram two writes to a mapping, each of which asks
whether this is still the same process: 1.6 microseconds where taking it down takes 0.3, dozens of times a request.
"""

from bisect import bisect_left
from typing import Any

from prometheus_client import Histogram

MOST_KEPT = 1000  # observations of one series


class Tally:
    """Of one histogram's series, on one thread."""

    __slots__ = ("_histogram", "_values")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram: Any = histogram
        self._values: list[float] = []

    def add(self, value: float) -> None:
        self._values.append(value)
        if len(self._values) >= MOST_KEPT:
            self.book()

    def book(self) -> None:
        """As if each had been observed by itself, except that nothing tells when."""
        values = self._values
        if not values:
            return
        self._values = []
        bounds: list[float] = self._histogram._upper_bounds
        counts: dict[int, int] = {}
        for value in values:
            place = bisect_left(bounds, value)
            counts[place] = counts.get(place, 0) + 1
        for place, count in counts.items():
            self._histogram._buckets[place].inc(count)
        self._histogram._sum.inc(sum(values))
