"""Shares and rates of burning, made of the counts of all routers where they are exposed.

A share cannot be summed over routers; what it is a share of can.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.core import Metric as Family

from triptych.metrics.metric import PREFIX
from triptych.metrics.of_slos import BUDGET_WINDOW, GOODPUT_WINDOW, SLO_RATIO_METRICS

_Values = Mapping[tuple[str, ...], float]


def slo_ratios(families: Iterable[Family]) -> list[Family]:
    """SLO_RATIO_METRICS of what the routers have counted; no series where nothing was."""
    told = {family.name.removeprefix(PREFIX): family for family in families}
    requests = _values(told, "slo_window_requests", "slo", "window")
    attained = _values(told, "slo_window_attained_requests", "slo", "window")
    targets = _values(told, "slo_target_ratio", "slo")
    shares = {key: attained.get(key, 0.0) / total for key, total in requests.items() if total > 0}
    burnt = {key: (1 - share) / (1 - targets[key[:1]]) for key, share in shares.items() if key[:1] in targets}
    found: dict[str, _Values] = {
        "slo_attainment_ratio": shares,
        "slo_burn_rate": burnt,
        "slo_error_budget_remaining_ratio": {(slo,): 1 - burnt.get((slo, BUDGET_WINDOW), 0.0) for (slo,) in targets},
        "slo_goodput_per_worker": _per_worker(told),
    }
    made: list[Family] = []
    for metric in SLO_RATIO_METRICS:
        family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in found[metric.name.removeprefix(PREFIX)].items():
            family.add_metric(labels, value)
        made.append(family)
    return made


def _per_worker(told: Mapping[str, Family]) -> _Values:
    """Goodput over the ready workers of each tier."""
    ready: dict[str, float] = defaultdict(float)
    for (worker_type, state), count in _values(told, "workers", "worker_type", "state").items():
        if state == "ready":
            ready[worker_type] += count
    goodput = _values(told, "slo_goodput_requests_per_second", "slo", "window")
    return {
        (slo, worker_type): rate / count
        for (slo, window), rate in goodput.items()
        if window == GOODPUT_WINDOW
        for worker_type, count in ready.items()
        if count
    }


def _values(told: Mapping[str, Family], name: str, *labels: str) -> _Values:
    if name not in told:
        return {}
    return {tuple(sample.labels[label] for label in labels): sample.value for sample in told[name].samples}
