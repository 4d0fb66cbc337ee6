"""Every metric: name, kind, unit (in the name), labels, buckets. One list, read by code, docs and dashboards.

Latency names and buckets follow vLLM's, so that stock dashboards work with a changed prefix; encoder stages follow
SGLang's stems; tier labels follow Dynamo's `worker_type`. No id of a request, URL or digest is ever a label.
"""

from triptych.metrics.books import FOLDER_VARIABLE, RouterMetrics
from triptych.metrics.bucket_counts import BucketCounter, BucketCounts
from triptych.metrics.metric import (
    COPY_BYTES_BUCKETS,
    COPY_SECONDS_BUCKETS,
    OTHER,
    PREFIX,
    Metric,
    WorkerMetric,
)
from triptych.metrics.of_routers import ROUTER_METRICS
from triptych.metrics.of_slos import BUDGET_WINDOW, SLO_METRICS, SLO_RATIO_METRICS, WINDOWS
from triptych.metrics.of_workers import DERIVED_METRICS, PAIR_METRICS, WORKER_GAUGES, WORKER_HISTOGRAMS, WORKER_LABELS
from triptych.metrics.worker_gauges import PairCounts, WorkerGauges

__all__ = [
    "BUDGET_WINDOW",
    "COPY_BYTES_BUCKETS",
    "COPY_SECONDS_BUCKETS",
    "DERIVED_METRICS",
    "FOLDER_VARIABLE",
    "OTHER",
    "PAIR_METRICS",
    "PREFIX",
    "ROUTER_METRICS",
    "SLO_METRICS",
    "SLO_RATIO_METRICS",
    "WINDOWS",
    "WORKER_GAUGES",
    "WORKER_HISTOGRAMS",
    "WORKER_LABELS",
    "BucketCounter",
    "BucketCounts",
    "Metric",
    "PairCounts",
    "RouterMetrics",
    "WorkerGauges",
    "WorkerMetric",
]
