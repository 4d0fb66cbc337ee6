"""What clients wait for, and how much they ask."""

from tools.dashboards.panel import Kind, Panel, Query, Row
from tools.dashboards.promql import buckets, mean, percentiles, rate, share, total

LATENCY = Row(
    "Latency",
    (
        Panel(
            "Time to first token",
            "From the request's arrival to its first token; the p99 is what one in a hundred waits for.",
            "If it rises, the stages board says which stage does. A p99 far above p90 is queueing, not slow hardware.",
            "s",
            percentiles("time_to_first_token_seconds"),
        ),
        Panel(
            "Time to first token, all of them",
            "How many requests a second took how long; darker is more. Two bands are two kinds of requests.",
            "A band that climbs is a queue that grows. A second band far above: retries, or images that no cache had.",
            "s",
            buckets("time_to_first_token_seconds"),
            Kind.HEATMAP,
        ),
        Panel(
            "Time per output token",
            "Mean gap between tokens of a request, behind its first.",
            "Rises with sequences per decode worker: add decode workers, or have prefill kept off them.",
            "s",
            percentiles("request_time_per_output_token_seconds"),
        ),
        Panel(
            "Time per output token, all of them",
            "How many requests a second had which pace; darker is more.",
            "A wide band says that some workers are slower than others: see the workers board.",
            "s",
            buckets("request_time_per_output_token_seconds"),
            Kind.HEATMAP,
        ),
        Panel(
            "Gap between tokens",
            "Every gap between two tokens of an answer, so that single stalls show.",
            "A p99 far above p50: preemptions, or prefill steps between decode steps.",
            "s",
            percentiles("inter_token_latency_seconds"),
        ),
        Panel(
            "Whole request",
            "From arrival to last token.",
            "Rises with the length of answers; compare with tokens per request below.",
            "s",
            percentiles("e2e_request_latency_seconds"),
        ),
        Panel(
            "Waiting, prefill, decode",
            "Mean seconds of a request in each of the three parts of its time.",
            "Waiting that grows wants workers; prefill that grows, shorter prompts or more prefill workers.",
            "s",
            (
                Query(mean("request_queue_time_seconds"), "waiting"),
                Query(mean("request_prefill_time_seconds"), "prefill"),
                Query(mean("request_decode_time_seconds"), "decode"),
            ),
            Kind.AREAS,
        ),
        Panel(
            "Requests in flight",
            "All that are being answered, and those of them that wait for workers, blocks or rows.",
            "Waiting that stays above 0 is more load than the tiers take.",
            "short",
            (Query(total("num_requests_running"), "in flight"), Query(total("num_requests_waiting"), "waiting")),
        ),
    ),
)

TRAFFIC = Row(
    "Traffic",
    (
        Panel(
            "Requests",
            "A second, by endpoint and class of HTTP status.",
            "5xx: errors by kind, beside. 4xx alone is the clients' own.",
            "reqps",
            (Query(rate("requests_total", "endpoint", "status"), "{{endpoint}} {{status}}"),),
            Kind.AREAS,
        ),
        Panel(
            "Errors and refusals",
            "Failed requests a second by kind of error, and those refused at the door by reason.",
            "docs/api.md lists the errors. Refusals for load: scale up, or lower what clients may ask.",
            "reqps",
            (
                Query(rate("request_errors_total", "error"), "{{error}}"),
                Query(rate("rejected_requests_total", "reason"), "refused: {{reason}}"),
            ),
        ),
        Panel(
            "Tokens",
            "A second: of prompts, of these from images and from the prefix cache, and generated ones.",
            "Capacity is planned in these; requests differ too much.",
            "ops",
            (
                Query(rate("prompt_tokens_total"), "prompt"),
                Query(rate("image_tokens_total"), "of images"),
                Query(rate("prompt_tokens_cached_total"), "of these cached"),
                Query(rate("generation_tokens_total"), "generated"),
            ),
        ),
        Panel(
            "How answers end",
            "Choices a second by the reason they ended.",
            "A share of `length` that jumps: clients' max_tokens is too low, or a prompt makes the model ramble.",
            "ops",
            (Query(rate("request_success_total", "finished_reason"), "{{finished_reason}}"),),
            Kind.AREAS,
        ),
        Panel(
            "Size of requests",
            "Mean tokens of a prompt and of an answer, and mean of what clients allowed.",
            "When latency moves, look here first whether the load did.",
            "short",
            (
                Query(mean("request_prompt_tokens"), "prompt"),
                Query(mean("request_generation_tokens"), "answer"),
                Query(mean("request_params_max_tokens"), "allowed"),
                Query(mean("request_params_n"), "choices"),
            ),
        ),
        Panel(
            "Images of a request",
            "Mean images of a request.",
            "When it rises encoders are what load grows at.",
            "short",
            (Query(mean("encoder_mm_items_per_request"), "images"),),
        ),
        Panel(
            "Share of images",
            "Of prompt tokens, those that images stand for.",
            "Near 1, size encoders first; near 0, prefill workers.",
            "percentunit",
            (Query(share(rate("image_tokens_total"), rate("prompt_tokens_total")), "of images"),),
        ),
    ),
)
