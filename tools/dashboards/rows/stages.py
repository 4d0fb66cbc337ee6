"""One request's way: all stages together, then the router's own."""

from tools.dashboards.panel import Kind, Limits, Panel, Query, Row
from tools.dashboards.promql import mean, quantile, rate, total


def stage_seconds(names: str, *, mostly: float = 0.9) -> tuple[Query, ...]:
    """The time that most requests spend at most in each of these stages. names: with | between them"""
    found = quantile(mostly, "stage_duration_seconds", "stage", stage=f"~{names}")
    return (Query(found, f"{{{{stage}}}} p{mostly * 100:g}"),)


WHOLE = Row(
    "Where the time goes",
    (
        Panel(
            "Seconds by stage",
            "Mean seconds of each stage, over the requests that have it, in one stack. Stages that go on side by side "
            "count each for itself, so the stack may be higher than the latency.",
            "The thickest layer is what to speed up; its row is below.",
            "s",
            (Query(mean("stage_duration_seconds", "stage"), "{{stage}}"),),
            Kind.AREAS,
            width=24,
        ),
        Panel(
            "Slow stages",
            "What nine in ten requests spend at most in each stage.",
            "A stage that is high here and low above is slow for a few only: large images, or one worker.",
            "s",
            stage_seconds(".+"),
        ),
        Panel(
            "Requests by stage of their journey",
            "Where the requests in flight are now.",
            "They pile up before the tier that is short of workers.",
            "short",
            (Query(total("requests_by_stage", "stage"), "{{stage}}"),),
            Kind.AREAS,
        ),
    ),
)

ROUTER = Row(
    "1 Router: read, lay out, place",
    (
        Panel(
            "Reading",
            "p90 of receiving the body, waiting for a turn, reading JSON and grammar.",
            "`receive` is the client's network; `turn` that grows wants another router process.",
            "s",
            stage_seconds("receive|turn|parse|grammar"),
            limits=Limits(0.1, 1),
        ),
        Panel(
            "Laying out",
            "p90 of template and tokenizer, and of the prompt with its items laid in.",
            "Grows with prompts; above 50 ms look for prompts of extraordinary length.",
            "s",
            stage_seconds("tokenize|layout"),
            limits=Limits(0.05, 0.5),
        ),
        Panel(
            "Placing",
            "p90 of choosing workers, or waiting for some.",
            "Above a few milliseconds a tier has no ready worker: see the faults row of the cluster board.",
            "s",
            stage_seconds("place|router|wire"),
            limits=Limits(0.05, 1),
        ),
        Panel(
            "Answering",
            "p90 from the first token to the client's socket.",
            "Above 10 ms the router's process is short of processor time: `serve.routers`.",
            "s",
            stage_seconds("respond"),
            limits=Limits(0.01, 0.1),
        ),
    ),
)

MEDIA = Row(
    "2 Media: fetch, hash, sniff",
    (
        Panel(
            "Seconds",
            "p90 of fetching images (or reading data URIs), hashing them and reading their headers.",
            "Slow fetches are others' servers; let clients send images themselves, or keep them by uuid.",
            "s",
            stage_seconds("fetch|hash|sniff"),
            limits=Limits(0.5, 5),
        ),
        Panel(
            "Images by URL",
            "A second, by how they were come by.",
            "Failures by one host: its certificates, its limits. All fetched, none kept: `router.media_cache_bytes`.",
            "ops",
            (Query(rate("media_fetches_total", "outcome"), "{{outcome}}"), Query(rate("images_total"), "all images")),
        ),
        Panel(
            "Media held",
            "Compressed bytes of requests in flight against what there may be, and what caches keep.",
            "At the budget requests are refused with 429: raise `router.media_budget_bytes`, or see why they stay.",
            "bytes",
            (
                Query(total("media_bytes"), "in flight"),
                Query(total("media_budget_bytes"), "budget"),
                Query(total("media_cache_bytes"), "fetched, kept"),
                Query(total("media_names_bytes"), "by uuid, kept"),
            ),
        ),
    ),
)
