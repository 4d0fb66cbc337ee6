"""Makes docs/metrics.md from the lists in triptych/metrics/: python -m tools.metrics_page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from triptych.metrics.of_routers import ROUTER_METRICS
from triptych.metrics.of_slos import SLO_METRICS, SLO_RATIO_METRICS
from triptych.metrics.of_workers import DERIVED_METRICS, PAIR_METRICS, WORKER_GAUGES, WORKER_HISTOGRAMS, WORKER_LABELS
from triptych.stages import TIMED_STAGES

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"
_UNITS = ("seconds", "bytes", "tokens", "blocks")

_HEAD = """\
# Metrics

Made from the lists in `triptych/metrics/`: `python -m tools.metrics_page`.

Any router answers `/metrics` for all of them, and for every worker. Names and buckets of latencies are vLLM's under
another prefix, encoder stages have SGLang's stems, and `worker_type` is a tier as Dynamo names it: `encode`,
`prefill`, `decode`, `aggregated` for a worker of all three roles, and the roles joined by `+` for one of two. No id
of a request, no URL, no digest and no key is ever a label; what a label does not know is told as `other`, so a server
has as many series as it has workers and classes of service, whatever it is asked.

Counters of a router are kept when one of several is replaced. A worker's counters begin at 0 again with its process,
as `rate()` expects; `changes(triptych:worker_start_time_seconds[1h])` says how often that was.
"""

_SDS = """\
## How they are scraped

`/metrics` alone is enough for a single job. `/v1/cluster/http_sd` is for Prometheus' `http_sd_configs`: one target
for the routers and one for each worker, all of them at the address that was asked. A worker's target has `up` 0 while
no router can reach it. Its series are not among those of the routers' target, so nothing is counted twice. Everything
that is found this way has the label `model_name`, by which dashboards that were made for vLLM select.

    scrape_configs:
      - job_name: triptych
        http_sd_configs:
          - url: http://127.0.0.1:8000/v1/cluster/http_sd    # the admin port, where there is one
            # authorization: {credentials_file: ...}          # an admin's key, where there are keys
        relabel_configs:
          - {source_labels: [__meta_triptych_worker_type], target_label: tier}

Workers open no port for this: what they know travels with their answers to the routers' `Status`, every half second.
"""

_DUPLICATES = """\
## Work done twice

`triptych:encoder_duplicate_encodes_total` counts the items that one worker has encoded after another one had. A
router remembers which worker was the last to encode each of the latest 32,768 digests it has seen. An item that the
same worker encodes again, having made room or having been restarted, is none, and what another router let encode is
not seen: with several routers the sum is a lower bound.

## Service levels

Classes are tables `[[slo.classes]]` in the file of settings, each with limits (`ttft_seconds`, `tpot_seconds`,
`e2e_seconds`; 0 is none), a `target`, the share of requests that has to be within all of them, and a `window_seconds`
for the budget of misses. There are `interactive` and `batch` where the file has none. A request names its class in
the header `X-Triptych-SLO`, else its key does (`slo = "batch"` in the file of keys), else it is `slo.default`. A name
that is no class is a 400.

- **counted** are answers given to the end, and those that failed for the server's reasons, refusals for want of room
  among them. What the client has to change, what it left, and what would have been in time but for the hosts of its
  images counts nowhere; neither does a connection that was refused before anything of it was read.
- **attained**: within every limit. TTFT is from the head of the request to the router's having the first token, TPOT
  (last − first token) / (tokens − 1), the end is the last token.
- **burn rate** of a window: share of misses / (1 − target). At 1 the budget lasts exactly its window. To page on 5 m
  and 1 h above 14.4, and to look on 30 m and 6 h above 6, is the usual pair for a window of 30 days.
- **goodput**: attained requests by the second; `slo_goodput_per_worker` divides it by the ready workers of a tier.

Windows are kept in memory by sixtieths of their length; a router that is replaced begins with empty ones. Over weeks,
take the counters: `sum(rate(triptych:slo_attained_requests_total[30d])) /
sum(rate(triptych:slo_requests_total[30d]))`. `triptych bench --slo CLASS --config FILE` holds its own measurements
against the same classes.
"""


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    kind: str
    labels: Sequence[str]
    help: str


def page() -> str:
    own = [_Row(each.name, each.kind, each.labels, each.help) for each in ROUTER_METRICS]
    told = [_Row(each.exposed_name, each.kind, WORKER_LABELS, each.help) for each in WORKER_GAUGES]
    made = [
        _Row(each.name, each.kind, each.labels, each.help)
        for each in (*WORKER_HISTOGRAMS, *DERIVED_METRICS, *PAIR_METRICS)
    ]
    levels = [_Row(each.name, each.kind, each.labels, each.help) for each in (*SLO_METRICS, *SLO_RATIO_METRICS)]
    parts = [
        *(_HEAD, _SDS, "## Counted by routers\n", _table(own)),
        *("### Stages\n", "The values of `stage` in `triptych:stage_duration_seconds`, in the order of a request.\n"),
        *(_stages(), "## Counted for each class of service\n", _table(levels)),
        *("## Told by workers\n", "One series for each worker.\n", _table([*told, *made]), _DUPLICATES),
    ]
    return "\n".join(parts)


def _table(rows: Iterable[_Row]) -> str:
    lines = ["| name | kind | unit | labels | |", "|---|---|---|---|---|"]
    for row in rows:
        labels = ", ".join(row.labels)
        lines.append(f"| `{row.name}` | {row.kind} | {_unit(row.name)} | {labels} | {row.help} |")
    return "\n".join(lines) + "\n"


def _stages() -> str:
    lines = ["| stage | where | |", "|---|---|---|"]
    lines += [f"| `{stage.name}` | {stage.tier} | {stage.help} |" for stage in TIMED_STAGES]
    return "\n".join(lines) + "\n"


def _unit(name: str) -> str:
    """As the name says it; empty for what is counted one by one."""
    words = name.removesuffix("_total").split("_")
    if name.endswith(("_perc", "_ratio", "_burn_rate")):
        return "ratio"
    if name.endswith("_per_second"):
        return "1/second"
    return next((unit for unit in _UNITS if unit in words[-1:]), "")


if __name__ == "__main__":
    PAGE.write_text(page())
