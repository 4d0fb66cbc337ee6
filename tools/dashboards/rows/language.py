"""Prefill workers, the way of their KV, and decode workers."""

from tools.dashboards.panel import Kind, Limits, Panel, Query, Row
from tools.dashboards.promql import buckets, largest, percentiles, quantile, rate, share, total
from tools.dashboards.rows.stages import stage_seconds

PREFILL = Row(
    "5 Prefill: wait, compute",
    (
        Panel(
            "Seconds",
            "p90 of waiting for room, of waiting between steps, and of the steps themselves.",
            "Waiting above computing: another prefill worker (`triptych scale prefill=N`).",
            "s",
            stage_seconds("prefill_queue|prefill_wait|prefill"),
            limits=Limits(1, 10),
        ),
        Panel(
            "Prompts",
            "Accepted or waiting, by worker, and windows of them that wait for landing memory.",
            "Uneven: one worker is slow, or has the prefixes that others ask for. Windows: `language.landing_bytes`.",
            "short",
            (
                Query(total("prefill_requests", "worker_id"), "{{worker_id}}"),
                Query(total("prefill_windows_waiting", "worker_id"), "{{worker_id}} windows"),
            ),
        ),
        Panel(
            "Tokens not yet computed",
            "Of those prompts, by worker.",
            "Divided by the tokens a second beside it is the wait of the next prompt.",
            "short",
            (Query(total("prefill_queued_tokens", "worker_id"), "{{worker_id}}"),),
        ),
        Panel(
            "Prompt tokens",
            "A second: looked up in the prefix cache, and found there; the gap is what prefill computes.",
            "What one worker can compute is its capacity; at it the queue grows.",
            "ops",
            (
                Query(rate("prefix_cache_queries_total", "worker_id"), "{{worker_id}} looked up"),
                Query(rate("prefix_cache_hits_total", "worker_id"), "{{worker_id}} found"),
            ),
        ),
    ),
)

KV_TRANSFER = Row(
    "6 Prefill to decode",
    (
        Panel(
            "Seconds of a request",
            "p90 of waiting for blocks at the decode worker, and from the first token until it has all the KV.",
            "`reserve` that grows: decode is full. `handover` that grows: the path between the two.",
            "s",
            stage_seconds("reserve|handover"),
            limits=Limits(0.2, 2),
        ),
        Panel(
            "One copy",
            "Median and p99 of one copy of KV, by transport.",
            "See the panels of copies of rows.",
            "s",
            (
                Query(quantile(0.5, "transfer_seconds", "transport", owner_role="prefill"), "{{transport}} p50"),
                Query(quantile(0.99, "transfer_seconds", "transport", owner_role="prefill"), "{{transport}} p99"),
            ),
        ),
        Panel(
            "KV",
            "Bytes a second that decode workers read from prefill workers.",
            "Near what the network carries: place tiers on one node (`serve.placement`).",
            "Bps",
            (Query(rate("transfer_bytes", "transport", suffix="_sum", owner_role="prefill"), "{{transport}}"),),
        ),
        Panel(
            "Tokens whose KV was sent",
            "A second, and those whose KV the decode worker had already.",
            "Many kept ones: conversations come back to the worker that knows them.",
            "ops",
            (Query(rate("kv_sent_tokens_total"), "sent"), Query(rate("kv_kept_tokens_total"), "kept")),
            Kind.AREAS,
        ),
    ),
)

DECODE = Row(
    "7 Decode",
    (
        Panel(
            "Seconds",
            "p90 from having all the KV to the second token, and from there to the last.",
            "`first_decode` above one step's time: the worker's step is long, or it waits to take the sequence in.",
            "s",
            stage_seconds("first_decode|decode"),
        ),
        Panel(
            "Gap between tokens, all of them",
            "How many tokens a second came after which gap; darker is more.",
            "A second band is steps that carry prefill chunks or come after a preemption.",
            "s",
            buckets("inter_token_latency_seconds"),
            Kind.HEATMAP,
        ),
        Panel(
            "Sequences",
            "Decoding, by worker, and requests that wait for blocks.",
            "At `language.max_sequences`, or with waiting ones: another decode worker.",
            "short",
            (
                Query(total("decode_sequences", "worker_id"), "{{worker_id}}"),
                Query(total("decode_reservations_queued", "worker_id"), "{{worker_id}} waiting"),
            ),
        ),
        Panel(
            "KV blocks in use",
            "Held or reserved, of all. Blocks that only the prefix cache keeps count as free.",
            "Above 90 %: sequences will make room for others. More `language.kv_bytes`, or another worker.",
            "percentunit",
            (Query(largest("kv_cache_usage_perc", "worker_id"), "{{worker_id}}"),),
            limits=Limits(0.8, 0.95),
        ),
        Panel(
            "Preemptions",
            "Sequences a second that made room: swapped to the host, stalled, or ended and prefilled again.",
            "Any for long: too little KV memory. Ended ones: more `language.swap_bytes`.",
            "ops",
            (
                Query(rate("preemptions_swapped_total"), "swapped"),
                Query(rate("preemptions_stalled_total"), "stalled"),
                Query(rate("preemptions_ended_total"), "ended"),
                Query(rate("preemption_resumes_total"), "went on"),
            ),
        ),
        Panel(
            "KV swapped",
            "Bytes a second to host memory, and back.",
            "Both for long: decode works for the swap; more KV memory, or another worker.",
            "Bps",
            (Query(rate("swapped_out_bytes_total"), "out"), Query(rate("swapped_in_bytes_total"), "back")),
        ),
        Panel(
            "Host memory for KV",
            "Share of it that holds the KV of sequences that made room.",
            "Full: the next ones are ended and prefilled again; more `language.swap_bytes`.",
            "percentunit",
            (
                Query(
                    f"1 - {total('swap_free_bytes', 'worker_id')} / ({total('swap_bytes', 'worker_id')} > 0)",
                    "{{worker_id}}",
                ),
            ),
            limits=Limits(0.5, 0.9),
        ),
        Panel(
            "Request, decoding",
            "From the first token to the last.",
            "Grows with answers' length; the pace is in the gap between tokens.",
            "s",
            percentiles("request_decode_time_seconds"),
        ),
    ),
)

PREFIXES = Row(
    "Cache of prefixes",
    (
        Panel(
            "Found",
            "Share of prompt tokens whose KV was cached, by worker.",
            "Falls when conversations go to other workers, or when blocks are short.",
            "percentunit",
            (
                Query(
                    share(
                        rate("prefix_cache_hits_total", "worker_id"), rate("prefix_cache_queries_total", "worker_id")
                    ),
                    "{{worker_id}}",
                ),
            ),
        ),
        Panel(
            "Blocks",
            "All blocks of a worker, the free ones, and those of these whose content can still be used.",
            "Few cached ones among the free: a busy pool that forgets before anyone comes back.",
            "short",
            (
                Query(total("kv_blocks", "worker_id"), "{{worker_id}} all"),
                Query(total("kv_free_blocks", "worker_id"), "{{worker_id}} free"),
                Query(total("kv_cached_blocks", "worker_id"), "{{worker_id}} cached"),
            ),
        ),
        Panel(
            "Saved",
            "Share of all prompt tokens that were not computed.",
            "The larger, the less prefill capacity the same load needs.",
            "percentunit",
            (Query(share(rate("prompt_tokens_cached_total"), rate("prompt_tokens_total")), "cached"),),
        ),
    ),
)
