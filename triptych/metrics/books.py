"""What a router counts, and the text of /metrics."""

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, product
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from triptych.metrics.metric import OTHER, Metric
from triptych.metrics.of_routers import ROUTER_METRICS
from triptych.metrics.of_slos import SLO_METRICS
from triptych.metrics.slo_ratios import slo_ratios
from triptych.metrics.tally import Tally
from triptych.metrics.worker_gauges import WorkerGauges

_MOST_AT_ZERO = 16  # series of one counter that are there before anything is counted
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client's: where several processes count together


class RouterMetrics:
    """The router's collectors, in a registry of their own; `expose` makes the body of /metrics.

    Where several routers make one server, each counts in files that all can read, and any of them exposes the sums.
    What was observed is in them once it has been booked; counts and gauges are at once. Belongs to one thread.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.worker_gauges = WorkerGauges()
        self._folder = os.environ.get(FOLDER_VARIABLE, "")
        self._metrics = {metric.name: metric for metric in (*ROUTER_METRICS, *SLO_METRICS)}
        self._families = {name: self._family(metric) for name, metric in self._metrics.items()}
        self._children: dict[tuple[str, ...], Any] = {}  # by name and values of labels: what looks them up is slow
        self._tallies: dict[tuple[str, ...], Tally] = {}
        for metric in self._metrics.values():
            self._begin(metric)

    def _begin(self, metric: Metric) -> None:
        """Few and known series of a counter begin at 0: of one that is first seen at 1 Prometheus sees no increase."""
        if metric.kind == "counter" and all(label in metric.values for label in metric.labels):
            combined = list(product(*(sorted(metric.values[label]) for label in metric.labels)))
            for values in combined if len(combined) <= _MOST_AT_ZERO else ():
                self._of(metric.name, dict(zip(metric.labels, values, strict=True)))

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        self._of(name, labels).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        self._of(name, labels).set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        key = (name, *labels.values())
        tally = self._tallies.get(key)
        if tally is None:
            told = _folded(labels, self._metrics[name].values)
            tally = Tally(self._families[name].labels(**told) if told else self._families[name])
            if told != labels:  # what strangers make up would fill the table
                tally.add(value)
                tally.book()
                return
            self._tallies[key] = tally
        tally.add(value)

    def book(self) -> None:
        """Let all that was observed be seen, also by other routers."""
        for tally in self._tallies.values():
            tally.book()

    def add_workers(self, source: WorkerGauges) -> None:
        """Let `source` report the workers' own gauges beside the router's metrics."""
        self.worker_gauges = source

    def expose(self) -> bytes:
        """All there is: the routers' own, and every worker's."""
        return generate_latest(_Together(chain(self._own(), self.worker_gauges.collect())))

    def expose_routers(self) -> bytes:
        """Without what workers have told."""
        return generate_latest(_Together(self._own()))

    def expose_worker(self, worker_id: str) -> bytes:
        """What one worker has told; nothing of one that is not known."""
        return generate_latest(_Together(self.worker_gauges.collect(worker_id)))

    def _own(self) -> list[Family]:
        self.book()
        source: Collector = self.registry
        if self._folder:
            sums = CollectorRegistry()
            MultiProcessCollector(sums, self._folder)  # type: ignore[no-untyped-call]
            source = sums
        families = list(source.collect())
        return [*families, *slo_ratios(families)]

    def _family(self, metric: Metric) -> Any:
        options: dict[str, Any] = {"registry": self.registry}
        if metric.kind == "counter":
            return Counter(metric.name, metric.help, metric.labels, **options)
        if metric.kind == "gauge":
            options["multiprocess_mode"] = metric.among_routers
            return Gauge(metric.name, metric.help, metric.labels, **options)
        return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, **options)

    def _of(self, name: str, labels: Mapping[str, str]) -> Any:
        if not labels:
            return self._families[name]
        key = (name, *chain.from_iterable(labels.items()))
        child = self._children.get(key)
        if child is None:
            told = _folded(labels, self._metrics[name].values)
            child = self._families[name].labels(**told)
            if told == labels:  # what strangers make up would fill the table
                self._children[key] = child
        return child


def _folded(labels: Mapping[str, str], values: Mapping[str, frozenset[str]]) -> dict[str, str]:
    return {label: value if label not in values or value in values[label] else OTHER for label, value in labels.items()}


class _Together(Collector):
    """Families that are there already."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Family]:
        yield from self._families
