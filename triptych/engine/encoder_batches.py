"""How large the batches of a vision tower are."""

from collections.abc import Mapping, Sequence

from triptych.metrics import WORKER_HISTOGRAMS, BucketCounter, BucketCounts
from triptych.metrics.metric import PREFIX

_ITEMS, _ROWS = "encoder_mm_items_per_batch", "encoder_rows_per_batch"


class BatchFigures:
    """One engine's, which guards it."""

    def __init__(self) -> None:
        self._counters = {
            metric.name.removeprefix(PREFIX): BucketCounter(metric.buckets) for metric in WORKER_HISTOGRAMS
        }

    def encoded(self, rows: Sequence[int]) -> None:
        """A batch went through the tower; none where nothing did.

        rows: of each item in it, those that failed included
        """
        if rows:
            self._counters[_ITEMS].add(len(rows))
            self._counters[_ROWS].add(sum(rows))

    def counts(self) -> Mapping[str, BucketCounts]:
        """By name in WORKER_HISTOGRAMS."""
        return {name: self._counters[name].counts for name in (_ITEMS, _ROWS)}
