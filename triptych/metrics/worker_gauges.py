"""What workers have told last, as Prometheus families labelled by worker and tier."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from triptych.metrics.bucket_counts import BucketCounts
from triptych.metrics.metric import COPY_BYTES_BUCKETS, COPY_SECONDS_BUCKETS, PREFIX
from triptych.metrics.of_workers import (
    COPY_BYTES_METRIC,
    COPY_SECONDS_METRIC,
    DERIVED_METRICS,
    PAIR_METRIC,
    WORKER_GAUGES,
    WORKER_HISTOGRAMS,
    WORKER_LABELS,
)

Worker = tuple[str, str]  # worker id, worker_type


@dataclass(frozen=True, slots=True)
class PairCounts:
    """What one worker tells of one kind of neighbour and one transport to them.

    by_seconds, by_bytes: copies per bucket, not cumulative, one more than there are buckets; empty for no copy
    """

    owner_role: str
    consumer_role: str
    transport: str
    num_neighbours: int = 0
    by_seconds: tuple[int, ...] = ()
    by_bytes: tuple[int, ...] = ()
    seconds: float = 0.0
    num_bytes: int = 0


class WorkerGauges(Collector):
    """Written by the fleet, read by whoever asks for /metrics."""

    def __init__(self) -> None:
        self.by_worker: dict[Worker, Mapping[str, float]] = {}
        self.pairs_by_worker: dict[Worker, Sequence[PairCounts]] = {}
        self.histograms_by_worker: dict[Worker, Mapping[str, BucketCounts]] = {}

    def tell(
        self,
        worker: Worker,
        gauges: Mapping[str, float],
        pairs: Sequence[PairCounts] = (),
        histograms: Mapping[str, BucketCounts] | None = None,
    ) -> None:
        """What the worker has told last."""
        self.by_worker[worker] = gauges
        self.pairs_by_worker[worker] = pairs
        self.histograms_by_worker[worker] = histograms or {}

    def forget(self, worker: Worker) -> None:
        """Nothing is told of it any more."""
        for told in (self.by_worker, self.pairs_by_worker, self.histograms_by_worker):
            told.pop(worker, None)

    def collect(self, worker_id: str | None = None) -> Iterator[Family]:
        """worker_id: whose alone; None: of all"""
        told = {worker: gauges for worker, gauges in self.by_worker.items() if worker_id in (None, worker[0])}
        for metric in WORKER_GAUGES:
            values = {worker: gauges[metric.name] for worker, gauges in told.items() if metric.name in gauges}
            yield _family(metric.kind, metric.exposed_name, metric.help, values)
        derived = {worker: _derived(gauges) for worker, gauges in told.items()}
        for each in DERIVED_METRICS:
            values = {worker: found[each.name] for worker, found in derived.items() if each.name in found}
            yield _family(each.kind, each.name, each.help, values)
        yield from self._histograms(worker_id)
        yield from self._pairs(worker_id)

    def _histograms(self, worker_id: str | None) -> Iterator[Family]:
        for metric in WORKER_HISTOGRAMS:
            family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for worker, histograms in self.histograms_by_worker.items():
                found = histograms.get(metric.name.removeprefix(PREFIX))
                if found is not None and worker_id in (None, worker[0]):
                    family.add_metric(worker, _cumulative(metric.buckets, found.counts), found.total)
            yield family

    def _pairs(self, worker_id: str | None) -> Iterator[Family]:
        neighbours = GaugeMetricFamily(PAIR_METRIC.name, PAIR_METRIC.help, labels=PAIR_METRIC.labels)
        seconds, num_bytes = (
            HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for metric in (COPY_SECONDS_METRIC, COPY_BYTES_METRIC)
        )
        for worker, pairs in self.pairs_by_worker.items():
            for pair in pairs if worker_id in (None, worker[0]) else ():
                labels = (*worker, pair.owner_role, pair.consumer_role, pair.transport)
                if pair.num_neighbours:
                    neighbours.add_metric(labels, pair.num_neighbours)
                if pair.by_seconds:
                    seconds.add_metric(labels, _cumulative(COPY_SECONDS_BUCKETS, pair.by_seconds), pair.seconds)
                if pair.by_bytes:
                    num_bytes.add_metric(labels, _cumulative(COPY_BYTES_BUCKETS, pair.by_bytes), pair.num_bytes)
        yield from (neighbours, seconds, num_bytes)


def _family(kind: str, name: str, help_: str, values: Mapping[Worker, float]) -> Family:
    make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    family = make(name, help_, labels=WORKER_LABELS)
    for worker, value in values.items():
        family.add_metric(worker, value)
    return family


def _derived(gauges: Mapping[str, float]) -> dict[str, float]:
    """DERIVED_METRICS of one worker, as far as what it tells goes."""
    found: dict[str, float] = {}
    for name, whole, free in (
        ("triptych:kv_cache_usage_perc", "kv_blocks", "kv_free_blocks"),
        ("triptych:encoder_arena_usage_ratio", "encoder_arena_bytes", "encoder_arena_free_bytes"),
    ):
        if gauges.get(whole):
            found[name] = 1 - gauges.get(free, 0.0) / gauges[whole]
    made_room = [gauges[f"preemptions_{how}_total"] for how in _WAYS if f"preemptions_{how}_total" in gauges]
    if made_room:
        found["triptych:num_preemptions_total"] = sum(made_room)
    return found


_WAYS = ("swapped", "stalled", "ended")


def _cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """As Prometheus has buckets: how many were at most that large."""
    names = [*map(floatToGoString, bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))
