"""How well the service levels are kept (triptych/config/slo.py): counted by routers, and what is made of the counts."""

from triptych.metrics.metric import PREFIX, Metric

BUDGET_WINDOW = "budget"  # the class's own window, which its budget of misses is for
GOODPUT_WINDOW = "5m"
# Of several lengths: a long one says that a burn matters, a short one that it still goes on. In seconds.
WINDOWS = {"5m": 300, "30m": 1800, "1h": 3600, "6h": 21600}

_COUNTED, _WINDOWED = ("slo",), ("slo", "window")

# Names of classes are the operator's own, and few.
SLO_METRICS = (
    Metric(PREFIX + "slo_requests_total", "counter", "Requests that count, by class of service", _COUNTED),
    Metric(PREFIX + "slo_attained_requests_total", "counter", "Of these, those within every limit", _COUNTED),
    Metric(PREFIX + "slo_attained_tokens_total", "counter", "Tokens that these have generated", _COUNTED),
    Metric(
        *(PREFIX + "request_slo_violations_total", "counter", "Limits that requests have missed", ("slo", "limit")),
        values={"limit": frozenset({"ttft", "tpot", "e2e", "failed"})},
    ),
    Metric(
        *(PREFIX + "slo_limit_seconds", "gauge", "The class's limits", ("slo", "limit")),
        among_routers="livemostrecent",
    ),
    Metric(
        *(PREFIX + "slo_target_ratio", "gauge", "Share of requests that has to be within them", _COUNTED),
        among_routers="livemostrecent",
    ),
    Metric(
        *(PREFIX + "slo_window_seconds", "gauge", "What the error budget is for", _COUNTED),
        among_routers="livemostrecent",
    ),
    Metric(PREFIX + "slo_window_requests", "gauge", "Requests that count, of the window that ends now", _WINDOWED),
    Metric(PREFIX + "slo_window_attained_requests", "gauge", "Of these, those within every limit", _WINDOWED),
    Metric(PREFIX + "slo_goodput_requests_per_second", "gauge", "The same, by the second", _WINDOWED),
)

# Made of the windows of all routers; no series where no request was.
SLO_RATIO_METRICS = (
    Metric(PREFIX + "slo_attainment_ratio", "gauge", "Share of requests within every limit", _WINDOWED),
    Metric(
        *(
            PREFIX + "slo_burn_rate",
            "gauge",
            "Misses, over those that may be; at 1 the budget lasts its window",
        ),
        _WINDOWED,
    ),
    Metric(
        *(
            PREFIX + "slo_error_budget_remaining_ratio",
            "gauge",
            "What is left of the misses that may be in the class's window",
        ),
        _COUNTED,
    ),
    Metric(
        *(PREFIX + "slo_goodput_per_worker", "gauge", "Goodput of five minutes, for each ready worker of a tier"),
        ("slo", "worker_type"),
    ),
)
