"""One worker, in a row of its own."""

from tools.dashboards.panel import Kind, Limits, Panel, Query, Row
from tools.dashboards.promql import rate, series, share, total

WORKER = Row(
    "$worker",
    (
        Panel(
            "Memory",
            "Resident memory of the process, and what it has allocated on its device.",
            "Flat after the first minutes. Growing for hours: a leak; report it with `triptych doctor --json`.",
            "bytes",
            (
                Query(total("rss_bytes", "worker_type"), "resident"),
                Query(total("device_bytes", "worker_type"), "device"),
            ),
            width=8,
        ),
        Panel(
            "Processor",
            "Seconds of processor time in each second.",
            "At `serve.cpu_threads` on a CPU that is all it gets; on a GPU near 1 the host is what waits.",
            "short",
            (Query(rate("worker_cpu_seconds_total", "worker_type"), "{{worker_type}}"),),
            width=8,
        ),
        Panel(
            "Work",
            "What it has now: images at an encoder, prompts at prefill, sequences at decode.",
            "Compare with the others of its tier: placement evens them out, unless one is slow.",
            "short",
            (
                Query(total("encoder_queued_items", "worker_type"), "images"),
                Query(total("prefill_requests", "worker_type"), "prompts"),
                Query(total("decode_sequences", "worker_type"), "sequences"),
            ),
            width=8,
        ),
        Panel(
            "Memory for rows and KV",
            "Share of the arena, and of the KV blocks, that is in use.",
            "Full of claims with few requests: see claims, beside.",
            "percentunit",
            (
                Query(total("encoder_arena_usage_ratio", "worker_type"), "arena"),
                Query(total("kv_cache_usage_perc", "worker_type"), "KV blocks"),
            ),
            limits=Limits(0.8, 0.95),
            width=8,
        ),
        Panel(
            "Reads and claims",
            "Copies a second that it made from neighbours, and claims that others hold on its memory.",
            "Claims without requests are a leak; no copies under load, a path that has failed.",
            "short",
            (
                Query(rate("transfer_seconds", "owner_role", suffix="_count"), "copies from {{owner_role}}"),
                Query(total("claims", "worker_type"), "claims"),
            ),
            width=8,
        ),
        Panel(
            "Caches",
            "Share found: of images at an encoder, of prompt tokens at prefill and decode.",
            "One worker far below the others of its tier gets what no cache knows.",
            "percentunit",
            (
                Query(
                    share(
                        rate("encoder_cache_hits_total", "worker_type"),
                        f"({rate('encoder_cache_hits_total', 'worker_type')} + "
                        f"{rate('encoder_items_encoded_total', 'worker_type')})",
                    ),
                    "images",
                ),
                Query(
                    share(
                        rate("prefix_cache_hits_total", "worker_type"),
                        rate("prefix_cache_queries_total", "worker_type"),
                    ),
                    "prompt tokens",
                ),
            ),
            width=8,
        ),
        Panel(
            "Alive for",
            "Since its process began.",
            "Short, again and again: it restarts; see the faults row of the cluster board.",
            "s",
            (Query(f"time() - max({series('worker_start_time_seconds')})", "alive"),),
            Kind.NUMBER,
            width=8,
        ),
    ),
    repeat="worker",
)
