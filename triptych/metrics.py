"""Every metric: name, kind, unit (in the name), labels, buckets. One list, read by code, docs and dashboards.

Latency names and buckets follow vLLM's, so that stock dashboards work with a changed prefix; encoder stages follow
SGLang's stems; tier labels follow Dynamo's `worker_type`. No id, URL or digest is ever a label.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STAGE_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
COPY_SECONDS_BUCKETS = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0),
)
COPY_BYTES_BUCKETS = tuple(float(4**power) for power in range(5, 16))  # 1 KiB to 1 GiB


FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client's: where several processes count together


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the list; `kind` is counter, gauge or histogram.

    among_routers: what a gauge is where several processes have it: the sum of those that live, or what was said last
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    among_routers: str = "livesum"


ROUTER_METRICS = (
    Metric("triptych:requests_total", "counter", "Requests by HTTP status class", ("endpoint", "status")),
    Metric("triptych:request_success_total", "counter", "Finished choices", ("finished_reason",)),
    Metric("triptych:request_errors_total", "counter", "Failed requests by error class", ("error",)),
    Metric("triptych:rejected_requests_total", "counter", "Requests refused at the door", ("reason",)),
    Metric("triptych:usage_log_dropped_total", "counter", "Lines of the usage log lost to a slow disk"),
    Metric("triptych:num_requests_running", "gauge", "Requests in flight"),
    Metric("triptych:prompt_tokens_total", "counter", "Prompt tokens, images included"),
    Metric("triptych:generation_tokens_total", "counter", "Generated tokens"),
    Metric("triptych:images_total", "counter", "Images accepted"),
    Metric("triptych:media_bytes", "gauge", "Compressed media held by requests in flight, bytes"),
    Metric("triptych:media_fetches_total", "counter", "Images asked for by URL: how they were come by", ("outcome",)),
    Metric("triptych:media_cache_bytes", "gauge", "Fetched images kept for the next request, bytes"),
    Metric(
        "triptych:media_names_bytes",
        "gauge",
        "Images kept by the uuid that their clients gave them, bytes",
        among_routers="livemostrecent",
    ),
    Metric("triptych:time_to_first_token_seconds", "histogram", "Arrival to first token", (), TTFT_BUCKETS),
    Metric("triptych:inter_token_latency_seconds", "histogram", "Between two tokens of a choice", (), ITL_BUCKETS),
    Metric("triptych:e2e_request_latency_seconds", "histogram", "Arrival to last token", (), LATENCY_BUCKETS),
    Metric("triptych:stage_duration_seconds", "histogram", "One stage of a request", ("stage",), STAGE_BUCKETS),
    Metric("triptych:retries_total", "counter", "Stages tried again", ("stage",)),
    Metric(
        *("triptych:workers", "gauge", "Workers known, by tier and state", ("worker_type", "state")),
        among_routers="livemostrecent",  # all of them know the same
    ),
)

# What StatusReply.gauges may hold; every worker reports those of its roles.
WORKER_GAUGES = (
    Metric("encoder_queued_items", "gauge", "Items waiting, being prepared or encoded"),
    Metric("encoder_queued_tokens", "gauge", "Patches of those items"),
    Metric("encoder_waiting_jobs", "gauge", "Requests' waits for those items; several may wait for one"),
    Metric("encoder_preprocess_queued_items", "gauge", "Items waiting for a preprocessing thread"),
    Metric("encoder_decode_processes", "gauge", "Processes that images are decoded in"),
    Metric("encoder_decode_lost_total", "gauge", "Of these, those that died, or were ended with an image overdue"),
    Metric("encoder_prepared_tokens", "gauge", "Patches prepared or being so, not yet in a batch"),
    Metric("encoder_preprocess_seconds_total", "gauge", "Seconds spent decoding, resizing and normalising"),
    Metric("encoder_encode_seconds_total", "gauge", "Seconds the device loop spent on batches"),
    Metric("encoder_arena_bytes", "gauge", "Size of the embedding arena"),
    Metric("encoder_arena_free_bytes", "gauge", "Arena bytes neither claimed nor cached"),
    Metric("encoder_arena_largest_free_bytes", "gauge", "The longest run of them: what an item without evictions gets"),
    Metric("encoder_arena_fragmentation_ratio", "gauge", "Share of the free bytes outside the longest free run"),
    Metric("encoder_claims", "gauge", "Claims on embedding rows, of requests that wait or may read"),
    Metric("encoder_cached_items", "gauge", "Items whose rows are ready in the arena"),
    Metric("encoder_cache_hits_total", "gauge", "Items found ready"),
    Metric("encoder_cache_joins_total", "gauge", "Items that joined an encode in flight"),
    Metric("encoder_cache_evictions_total", "gauge", "Items whose rows made room for others"),
    Metric("encoder_cache_oversize_total", "gauge", "Items refused because their rows never fit the arena"),
    Metric("encoder_cache_replacements_total", "gauge", "Items made anew while old rows of theirs were still read"),
    Metric("encoder_cache_pinned_bytes", "gauge", "Rows that operators have pinned"),
    Metric("encoder_host_bytes", "gauge", "Size of the host memory for rows that had to leave the arena"),
    Metric("encoder_host_free_bytes", "gauge", "Bytes of it without rows"),
    Metric("encoder_host_demotions_total", "gauge", "Items whose rows went from the arena to the host"),
    Metric("encoder_host_promotions_total", "gauge", "Items whose rows came back from the host"),
    Metric("encoder_host_failures_total", "gauge", "Copies to or from the host that failed"),
    Metric("encoder_budget_items", "gauge", "Items one batch may hold"),
    Metric("encoder_budget_tokens", "gauge", "Encoder tokens one batch may hold, raised to the largest item"),
    Metric("encoder_budget_output_bytes", "gauge", "Bytes for rows being made or read"),
    Metric("encoder_budget_reuse_bytes", "gauge", "Bytes for rows kept for reuse"),
    Metric("encoder_prepared_bytes", "gauge", "Bytes of images prepared or being so, not yet in a batch"),
    Metric("encoder_graph_replays_total", "gauge", "Batches that replayed a captured graph"),
    Metric("encoder_graph_misses_total", "gauge", "Batches that fitted no captured graph and ran eagerly"),
    Metric("encoder_items_encoded_total", "gauge", "Items that went through the vision tower"),
    Metric("kv_blocks", "gauge", "KV blocks in the pool"),
    Metric("kv_free_blocks", "gauge", "KV blocks neither held nor reserved"),
    Metric("kv_cached_blocks", "gauge", "Free KV blocks whose content can still be reused"),
    Metric("prefix_lookup_tokens_total", "gauge", "Prompt tokens looked up among cached KV"),
    Metric("prefix_hit_tokens_total", "gauge", "Prompt tokens found there"),
    Metric("prefill_windows_waiting", "gauge", "Windows of accepted prompts that wait for landing rows"),
    Metric("prefill_queued_tokens", "gauge", "Prompt tokens accepted or waiting, not yet computed"),
    Metric("prefill_requests", "gauge", "Prompts accepted or waiting"),
    Metric("decode_sequences", "gauge", "Sequences decoding"),
    Metric("decode_reservations_queued", "gauge", "Requests waiting for KV blocks"),
    Metric("preempted_sequences", "gauge", "Sequences that make room for others until there are KV blocks again"),
    Metric("preemptions_swapped_total", "gauge", "Sequences whose KV went to host memory to make room"),
    Metric("preemptions_stalled_total", "gauge", "Sequences that stood still until others gave blocks back"),
    Metric("preemptions_ended_total", "gauge", "Sequences ended to make room, host memory being full"),
    Metric("preemption_resumes_total", "gauge", "Sequences that went on after they had made room, or stood still"),
    Metric("swap_bytes", "gauge", "Host memory for the KV of those that make room"),
    Metric("swap_free_bytes", "gauge", "Bytes of it without KV"),
    Metric("swapped_out_bytes_total", "gauge", "KV copied to host memory"),
    Metric("swapped_in_bytes_total", "gauge", "KV copied back from there"),
    Metric("kv_sent_tokens_total", "gauge", "Prompt tokens whose KV came from another worker to be decoded behind"),
    Metric("kv_kept_tokens_total", "gauge", "Prompt tokens whose KV was at the decode worker already, and not sent"),
    Metric("landing_bytes", "gauge", "Landing memory reserved for embedding rows"),
    Metric("claims", "gauge", "Claims on exported memory"),
    Metric("claims_granted_total", "gauge", "Claims ever granted"),
    Metric("claims_released_total", "gauge", "Claims given back, or ended with their request"),
    Metric("late_releases_total", "gauge", "Releases of claims that were gone already"),
    Metric("expired_claims_total", "gauge", "Claims ended by the sweeper"),
    Metric("transfer_lost_copies", "gauge", "Copies given up that have not ended, each holding memory until then"),
    Metric("rss_bytes", "gauge", "Resident memory of the process"),
    Metric("device_bytes", "gauge", "Device memory allocated by the process"),
)

_PAIR_LABELS = ("worker_id", "worker_type", "owner_role", "consumer_role", "transport")

# Made of what StatusReply tells of paths and copies; the worker is the one that reads.
PAIR_METRIC = Metric(
    "triptych:transfer_pair_info", "gauge", "Neighbours by the path to them; transport none: no path", _PAIR_LABELS
)
COPY_SECONDS_METRIC = Metric(
    *("triptych:transfer_seconds", "histogram", "One copy out of a neighbour's memory, its checks included"),
    *(_PAIR_LABELS, COPY_SECONDS_BUCKETS),
)
COPY_BYTES_METRIC = Metric(
    *("triptych:transfer_bytes", "histogram", "Bytes of one copy out of a neighbour's memory"),
    *(_PAIR_LABELS, COPY_BYTES_BUCKETS),
)


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


class RouterMetrics:
    """The router's collectors, in a registry of their own; `expose()` is the body of /metrics.

    Where several routers make one server, each counts in files that all can read, and any of them exposes the sums.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._sources: list[Collector] = []
        self._folder = os.environ.get(FOLDER_VARIABLE, "")
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        self._children: dict[tuple[str, ...], Any] = {}  # by name and values of labels: what looks them up is slow
        for metric in ROUTER_METRICS:
            if metric.kind == "counter":
                self._counters[metric.name] = Counter(metric.name, metric.help, metric.labels, registry=self.registry)
            elif metric.kind == "gauge":
                mode: Any = metric.among_routers
                self._gauges[metric.name] = Gauge(
                    metric.name, metric.help, metric.labels, registry=self.registry, multiprocess_mode=mode
                )
            else:
                self._histograms[metric.name] = Histogram(
                    metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self.registry
                )

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        self._of(self._counters, name, labels).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        self._of(self._gauges, name, labels).set(value)

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        self._of(self._histograms, name, labels).observe(seconds)

    def _of(self, families: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> Any:
        if not labels:
            return families[name]
        key = (name, *chain.from_iterable(labels.items()))
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = families[name].labels(**labels)
        return child

    def add_workers(self, source: Collector) -> None:
        """Let `source` (see WorkerGauges) report the workers' own gauges beside the router's metrics."""
        self._sources.append(source)
        self.registry.register(source)

    def expose(self) -> bytes:
        if not self._folder:
            return generate_latest(self.registry)
        sums = CollectorRegistry()
        MultiProcessCollector(sums, self._folder)  # type: ignore[no-untyped-call]
        for source in self._sources:
            sums.register(source)
        return generate_latest(sums)


class WorkerGauges(Collector):
    """The latest StatusReply of every worker, as Prometheus families labelled by worker and tier."""

    def __init__(self) -> None:
        self.by_worker: dict[tuple[str, str], Mapping[str, float]] = {}  # (worker id, worker_type) -> gauges
        self.pairs_by_worker: dict[tuple[str, str], Sequence[PairCounts]] = {}

    def collect(self) -> Iterator[GaugeMetricFamily | HistogramMetricFamily]:
        for metric in WORKER_GAUGES:
            family = GaugeMetricFamily(f"triptych:{metric.name}", metric.help, labels=("worker_id", "worker_type"))
            for (worker_id, worker_type), gauges in self.by_worker.items():
                if metric.name in gauges:
                    family.add_metric((worker_id, worker_type), gauges[metric.name])
            yield family
        yield from self._pairs()

    def _pairs(self) -> Iterator[GaugeMetricFamily | HistogramMetricFamily]:
        neighbours = GaugeMetricFamily(PAIR_METRIC.name, PAIR_METRIC.help, labels=PAIR_METRIC.labels)
        seconds, num_bytes = (
            HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for metric in (COPY_SECONDS_METRIC, COPY_BYTES_METRIC)
        )
        for worker, pairs in self.pairs_by_worker.items():
            for pair in pairs:
                labels = (*worker, pair.owner_role, pair.consumer_role, pair.transport)
                if pair.num_neighbours:
                    neighbours.add_metric(labels, pair.num_neighbours)
                if pair.by_seconds:
                    seconds.add_metric(labels, _cumulative(COPY_SECONDS_BUCKETS, pair.by_seconds), pair.seconds)
                if pair.by_bytes:
                    num_bytes.add_metric(labels, _cumulative(COPY_BYTES_BUCKETS, pair.by_bytes), pair.num_bytes)
        yield from (neighbours, seconds, num_bytes)


def _cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """As Prometheus has buckets: how many were at most that large."""
    names = [*map(floatToGoString, bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))
