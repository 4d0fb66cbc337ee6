"""Workers that come and go, and what requests notice of it."""

from tools.dashboards.panel import Kind, Limits, Panel, Query, Row
from tools.dashboards.promql import counted, rate, series, share, smallest, total

_GENERATING = "~/v1/(chat/completions|completions|responses|messages)"  # endpoints of; probes are never tried again

FAULTS = Row(
    "Faults, retries, restarts",
    (
        Panel(
            "Workers by state",
            "By tier, as routers know them; one that is to come is `coming`. All should be `ready`.",
            "`triptych status` and `triptych scale` name those that are not, and why. A tier without ready ones pages.",
            "short",
            (Query(total("workers", "worker_type", "state"), "{{worker_type}} {{state}}"),),
            Kind.AREAS,
        ),
        Panel(
            "Age of workers",
            "Seconds since each worker's process began: a saw tooth is a worker that restarts.",
            "The supervisor's log has the last words of the one before.",
            "s",
            (
                Query(
                    f"time() - max by (worker_id) ({series('worker_start_time_seconds')})",
                    "{{worker_id}}",
                ),
            ),
        ),
        Panel(
            "Workers lost",
            "In the chosen time, by tier; each router counts its own.",
            "One is an accident; a second soon after it is memory, or a request that kills. See the log.",
            "short",
            (Query(counted("worker_links_lost_total", "worker_type"), "{{worker_type}}"),),
            Kind.NUMBER,
            Limits(1, 3),
        ),
        Panel(
            "Self-tests",
            "In the chosen time, by outcome: a worker takes work only once a known image came out right.",
            "`wrong` is critical: that worker stays out. `failed` is tried again.",
            "short",
            (Query(counted("self_tests_total", "outcome"), "{{outcome}}"),),
            Kind.NUMBER,
        ),
        Panel(
            "Retries",
            "Stages tried again a second.",
            "Come with lost workers and go with them. Without any lost: a worker that answers with errors.",
            "ops",
            (Query(rate("retries_total", "stage"), "{{stage}}"),),
            Kind.AREAS,
        ),
        Panel(
            "Room for retries",
            "Retries that could be made at once, where there is least room: each router has its own, for each model.",
            "At 0 errors reach clients: about one request in ten may be tried again, or retries would feed overloads.",
            "short",
            (Query(smallest("retry_budget"), "room"),),
            limits=Limits(5, 1),
        ),
        Panel(
            "Requests tried again",
            "Share of requests at some stage of which there was another attempt.",
            "Above 10 % for long: the alert of a storm; find the tier that fails.",
            "percentunit",
            (Query(share(rate("retries_total"), rate("requests_total", endpoint=_GENERATING)), "tried again"),),
            limits=Limits(0.02, 0.1),
        ),
        Panel(
            "Errors of tiers",
            "Failures that requests met, a second, by tier and kind.",
            "`worker_lost` goes with restarts; others are in that tier's logs, with the request's id.",
            "ops",
            (Query(rate("stage_errors_total", "stage", "error"), "{{stage}} {{error}}"),),
            Kind.AREAS,
        ),
        Panel(
            "Scrapes",
            "Whether Prometheus reaches the cluster: 1 for each target that answers.",
            "0: the process is gone, or a firewall; all other panels of that target stand still.",
            "short",
            (Query('min by (cluster, job, instance) (up{cluster=~"$cluster"})', "{{job}} {{instance}}"),),
            limits=Limits(1, 0.5),
        ),
        Panel(
            "Alerts that fire",
            "Of deploy/prometheus/alerts.rules.yml, now.",
            "docs/operations.md has what to do about each, under its name.",
            "short",
            (
                Query(
                    'sort_desc(sum by (alertname, severity, slo, worker_type, worker_id) (ALERTS{cluster=~"$cluster",'
                    'alertstate="firing",alertname=~"Triptych.*"}))',
                    "alert",
                ),
            ),
            Kind.TABLE,
        ),
        Panel(
            "Versions",
            "What runs, and of which model.",
            "Two lines for long: an upgrade that has stopped half-way.",
            "short",
            (
                Query(
                    f"max by (cluster, version, model_name) ({series('build_info')})",
                    "{{version}} {{model_name}}",
                ),
            ),
            Kind.TABLE,
        ),
        Panel(
            "Lines of the usage log lost",
            "A second, to a slow disk.",
            "Any: move `router.usage_log` to another disk; bills are short by these.",
            "ops",
            (Query(rate("usage_log_dropped_total"), "lost"),),
            limits=Limits(0.1, 1),
        ),
    ),
)
