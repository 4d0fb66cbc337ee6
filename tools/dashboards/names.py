"""Names and labels of all metrics that a board may ask for."""

from triptych.metrics import (
    DERIVED_METRICS,
    PAIR_METRICS,
    PREFIX,
    ROUTER_METRICS,
    SLO_METRICS,
    SLO_RATIO_METRICS,
    WORKER_GAUGES,
    WORKER_HISTOGRAMS,
    WORKER_LABELS,
)

_LABELS = {
    **{
        each.name.removeprefix(PREFIX): each.labels
        for each in (
            *(*ROUTER_METRICS, *SLO_METRICS, *SLO_RATIO_METRICS),
            *(*WORKER_HISTOGRAMS, *DERIVED_METRICS, *PAIR_METRICS),
        )
    },
    **{each.exposed_name.removeprefix(PREFIX): WORKER_LABELS for each in WORKER_GAUGES},
}


def labels_of(name: str) -> tuple[str, ...]:
    """Of a metric, without its prefix. Raises KeyError for one that is not in the list."""
    return _LABELS[name]
