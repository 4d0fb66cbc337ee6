"""PromQL over the metrics of triptych.metrics: a name that is not in the list, or a label it lacks, is an error here.

Every selector has the board's variables for those labels that the metric has.
"""

from tools.dashboards.names import labels_of
from tools.dashboards.panel import Query

PERCENTILES = (0.5, 0.9, 0.99)
# Of Grafana's choosing: at least four scrapes long.
WINDOW = "[$__rate_interval]"
_VARIABLES = ("cluster", "worker_type", "worker_id", "slo")
_VARIABLE_OF = {"worker_id": "worker"}


def series(name: str, suffix: str = "", **wanted: str) -> str:
    """A selector: `triptych:NAME` of the chosen clusters and workers. wanted: a label's value, or a pattern after ~"""
    labels = ("cluster", *labels_of(name))
    if missing := wanted.keys() - {*labels}:
        raise ValueError(f"{name} has no label {', '.join(sorted(missing))}")
    chosen = [f'{each}=~"${_VARIABLE_OF.get(each, each)}"' for each in labels if each in _VARIABLES]
    told = [_matcher(label, value) for label, value in wanted.items()]
    return f"triptych:{name}{suffix}{{{','.join([*chosen, *told])}}}"


def _matcher(label: str, value: str) -> str:
    return f'{label}=~"{value[1:]}"' if value.startswith("~") else f'{label}="{value}"'


def total(name: str, *by: str, **wanted: str) -> str:
    """The sum of a gauge."""
    return f"{_over('sum', by)}({series(name, **wanted)})"


def largest(name: str, *by: str, **wanted: str) -> str:
    return f"{_over('max', by)}({series(name, **wanted)})"


def smallest(name: str, *by: str, **wanted: str) -> str:
    return f"{_over('min', by)}({series(name, **wanted)})"


def rate(name: str, *by: str, suffix: str = "", **wanted: str) -> str:
    """Of a counter, a second."""
    return f"{_over('sum', by)}(rate({series(name, suffix, **wanted)}{WINDOW}))"


def counted(name: str, *by: str, **wanted: str) -> str:
    """By how much a counter has risen in the time range of the board."""
    return f"{_over('sum', by)}(increase({series(name, **wanted)}[$__range]))"


def mean(name: str, *by: str, **wanted: str) -> str:
    """Of a histogram."""
    return f"{rate(name, *by, suffix='_sum', **wanted)} / {rate(name, *by, suffix='_count', **wanted)}"


def quantile(share: float, name: str, *by: str, **wanted: str) -> str:
    """Of a histogram."""
    return f"histogram_quantile({share:g}, {rate(name, 'le', *by, suffix='_bucket', **wanted)})"


def share(part: str, whole: str) -> str:
    """One over the other. Where the whole is 0 there is no point, rather than one that says 0 or 1."""
    return f"{part} / ({whole} > 0)"


def percentiles(name: str, **wanted: str) -> tuple[Query, ...]:
    """Of a histogram, and its mean."""
    queries = [Query(quantile(each, name, **wanted), f"p{each * 100:g}") for each in PERCENTILES]
    return (*queries, Query(mean(name, **wanted), "mean"))


def buckets(name: str, **wanted: str) -> tuple[Query, ...]:
    """Of a histogram, for a heatmap."""
    return (Query(rate(name, "le", suffix="_bucket", **wanted), "{{le}}"),)


def _over(how: str, by: tuple[str, ...]) -> str:
    return f"{how} by ({', '.join(by)}) " if by else f"{how}"
