"""How well service levels are kept, class by class."""

from tools.dashboards.panel import Kind, Limits, Panel, Query, Row
from tools.dashboards.promql import counted, largest, rate, series, share, total

# Windows that the alert rules look at; recorded by deploy/prometheus/slo.rules.yml.
BURN_WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")


def _burn(window: str) -> Query:
    recorded = f'max by (slo) (cluster_slo:triptych_slo_burn_rate:ratio{window}{{cluster=~"$cluster",slo=~"$slo"}})'
    return Query(recorded, f"{{{{slo}}}} {window}")


SLO = Row(
    "Service levels",
    (
        Panel(
            "Attainment",
            "Share of the requests in the chosen time that were within every limit of their class.",
            "Below the class's target, look at which limit is missed, then at the stage that takes the time.",
            "percentunit",
            (
                Query(
                    share(counted("slo_attained_requests_total", "slo"), counted("slo_requests_total", "slo")),
                    "{{slo}}",
                ),
            ),
            Kind.NUMBER,
            Limits(0.99, 0.95),
            6,
        ),
        Panel(
            "Error budget left",
            "What is left of the misses that the class's window allows: 100 % untouched, 0 % spent, below overdrawn. "
            "Routers keep it in memory: after a restart it is whole again, and over weeks the burn rates tell better.",
            "Near 0 %, stop roll-outs and experiments; add workers to the slowest tier.",
            "percentunit",
            (Query(f"min by (slo) ({series('slo_error_budget_remaining_ratio')})", "{{slo}}"),),
            Kind.NUMBER,
            Limits(0.5, 0.1),
            6,
        ),
        Panel(
            "Goodput",
            "Requests a second that were within every limit of their class; only these count.",
            "Compare with all requests below: a growing gap means that more load would only make more misses.",
            "reqps",
            (Query(rate("slo_attained_requests_total", "slo"), "{{slo}}"),),
            Kind.NUMBER,
            None,
            6,
        ),
        Panel(
            "Tokens within limits",
            "Tokens a second of those requests.",
            "Falls with goodput; if it falls alone, answers have become shorter.",
            "ops",
            (Query(rate("slo_attained_tokens_total", "slo"), "{{slo}}"),),
            Kind.NUMBER,
            None,
            6,
        ),
        Panel(
            "Burn rate",
            "How many times faster than allowed the error budget is used: at 1 it lasts exactly its window. Each class "
            "has a line for each window that alerts look at.",
            "14.4 over an hour spends 2 % of a month's budget and pages; 6 over six hours pages; 3 over a day and 1 "
            "over three days want a ticket. A short window that is down again says that it is over.",
            "short",
            tuple(_burn(window) for window in BURN_WINDOWS),
            limits=Limits(1, 14.4),
        ),
        Panel(
            "Burn rate, as routers count it",
            "The same from the routers' own windows, which need no recording rules and begin again with a router.",
            "Trust the other one over hours and days; this one is there from the first request on.",
            "short",
            (Query(largest("slo_burn_rate", "slo", "window"), "{{slo}} {{window}}"),),
            limits=Limits(1, 14.4),
        ),
        Panel(
            "Goodput against all",
            "Requests a second that count for a class, and those of them within its limits.",
            "The gap is what clients see as too slow or failed.",
            "reqps",
            (
                Query(rate("slo_requests_total", "slo"), "{{slo}} all"),
                Query(rate("slo_attained_requests_total", "slo"), "{{slo}} within limits"),
            ),
        ),
        Panel(
            "Limits missed",
            "Misses a second: ttft is the first token, tpot the pace behind it, e2e the whole, failed no answer.",
            "ttft: encoder and prefill. tpot: decode workers. failed: the row of faults on the cluster board.",
            "ops",
            (Query(rate("request_slo_violations_total", "slo", "limit"), "{{slo}} {{limit}}"),),
            Kind.AREAS,
        ),
        Panel(
            "Attainment by window",
            "Share of requests within limits, over each window that routers keep.",
            "A short window below a long one says that it is getting worse now.",
            "percentunit",
            (Query(f"min by (slo, window) ({series('slo_attainment_ratio')})", "{{slo}} {{window}}"),),
        ),
        Panel(
            "Goodput for each worker",
            "Requests a second within limits, over the ready workers of a tier.",
            "The tier whose figure rises least when workers are added is not the one that needs them.",
            "reqps",
            (Query(total("slo_goodput_per_worker", "slo", "worker_type"), "{{slo}} {{worker_type}}"),),
        ),
        Panel(
            "Classes",
            "The target of each class, and its limits in seconds.",
            "Change them in the configuration's `[slo]`; alerts follow by themselves.",
            "short",
            (
                Query(largest("slo_target_ratio", "slo"), "target"),
                Query(largest("slo_limit_seconds", "slo", "limit"), "limit"),
            ),
            Kind.TABLE,
        ),
    ),
)
