"""Histograms that workers count themselves: told whole with their Status, and exposed by the routers."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BucketCounts:
    """What a histogram has seen up to now.

    counts: values per bucket, not cumulative; the last is of what is beyond the largest
    total:  of all values together
    """

    counts: tuple[int, ...]
    total: float


class BucketCounter:
    """Counts values by size. Belongs to whoever guards it."""

    def __init__(self, buckets: Sequence[float]) -> None:
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._buckets, value)] += 1
        self._total += value

    @property
    def counts(self) -> BucketCounts:
        return BucketCounts(tuple(self._counts), self._total)
