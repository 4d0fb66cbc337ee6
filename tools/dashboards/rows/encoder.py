"""Encoders, and the way of their rows to prefill workers."""

from tools.dashboards.panel import Kind, Limits, Panel, Query, Row
from tools.dashboards.promql import WINDOW, mean, percentiles, quantile, rate, series, share, total
from tools.dashboards.rows.stages import stage_seconds

ENCODER = Row(
    "3 Encoder: wait, preprocess, encode",
    (
        Panel(
            "Queue",
            "Images waiting, being prepared or encoded, and those of them that wait for a preprocessing thread.",
            "If most wait for a thread, the processor is short (`encoder.preprocess_threads`); else the device is.",
            "short",
            (
                Query(total("encoder_queued_items", "worker_id"), "{{worker_id}}"),
                Query(total("encoder_preprocess_queued_items", "worker_id"), "{{worker_id}} for a thread"),
            ),
            limits=Limits(64, 512),
        ),
        Panel(
            "Wait",
            "One image's wait for a thread and then a batch.",
            "Above a few batches' time: another encoder (`triptych scale encode=N`).",
            "s",
            percentiles("encoder_queue_wait_seconds"),
            limits=Limits(0.5, 2),
        ),
        Panel(
            "Preprocess",
            "Decoding, resizing and normalising one image.",
            "Grows with pixels: `router.max_image_pixels`. On a GPU JPEGs may be decoded there (`encoder.gpu_jpeg`).",
            "s",
            percentiles("encoder_preprocess_seconds"),
        ),
        Panel(
            "Vision tower",
            "The batch that an image was in.",
            "Grows with patches of a batch (`encoder.max_encoder_tokens_per_batch`), on a GPU with graph misses.",
            "s",
            percentiles("encoder_model_forward_seconds"),
        ),
        Panel(
            "From asking to rows",
            "What a request waits for one image, by kind of item.",
            "The three panels before say which part it is.",
            "s",
            (
                Query(quantile(0.5, "encoder_request_e2e_latency_seconds", "modality"), "{{modality}} p50"),
                Query(quantile(0.99, "encoder_request_e2e_latency_seconds", "modality"), "{{modality}} p99"),
            ),
        ),
        Panel(
            "Items",
            "A second: encoded, found in a cache, or failed.",
            "Failures are images that could not be decoded, or encoders lost; errors by kind are on the SLO board.",
            "ops",
            (Query(rate("encoder_requests_total", "modality", "status"), "{{modality}} {{status}}"),),
            Kind.AREAS,
        ),
        Panel(
            "Busy",
            "Seconds in each second that an encoder's device worked, and that its preprocessing threads did together.",
            "Device near 1: another encoder. Threads at their number while the device rests: more of them.",
            "short",
            (
                Query(rate("encoder_model_forward_busy_seconds_total", "worker_id"), "{{worker_id}} device"),
                Query(rate("encoder_preprocess_busy_seconds_total", "worker_id"), "{{worker_id}} threads"),
            ),
            limits=Limits(0.8, 0.95),
        ),
        Panel(
            "Batch size",
            "Items that went through the vision tower together, and the rows they made: median and p90.",
            "Near 1 item behind a queue: images too large to share a batch; `encoder.max_encoder_tokens_per_batch`.",
            "short",
            (
                *(Query(quantile(each, "encoder_mm_items_per_batch"), f"items p{each * 100:g}") for each in (0.5, 0.9)),
                Query(mean("encoder_mm_items_per_batch"), "items mean"),
                *(Query(quantile(each, "encoder_rows_per_batch"), f"rows p{each * 100:g}") for each in (0.5, 0.9)),
                Query(mean("encoder_rows_per_batch"), "rows mean"),
            ),
        ),
        Panel(
            "Patches a batch",
            "Patches that wait prepared, against what one batch may hold.",
            "Always full and a queue behind it: larger batches, if memory allows, or another encoder.",
            "short",
            (
                Query(total("encoder_prepared_tokens", "worker_id"), "{{worker_id}} prepared"),
                Query(total("encoder_budget_tokens", "worker_id"), "{{worker_id}} budget"),
            ),
        ),
        Panel(
            "CUDA graphs",
            "Share of batches that replayed a captured graph; on a CPU there are none, and the line is 0.",
            "Below one half on a GPU: images of many sizes; see `encoder.graphs`.",
            "percentunit",
            (
                Query(
                    f"{rate('encoder_graph_replays_total', 'worker_id')} / clamp_min("
                    f"{rate('encoder_graph_replays_total', 'worker_id')} + "
                    f"{rate('encoder_graph_misses_total', 'worker_id')}, 1e-9)",
                    "{{worker_id}}",
                ),
            ),
        ),
        Panel(
            "Decoders lost",
            "Processes that images are decoded in, and how many of them a minute died or were ended.",
            "Any: a file that crashes a decoder, or memory. The encoder's log names the request.",
            "short",
            (
                Query(total("encoder_decode_processes", "worker_id"), "{{worker_id}} there"),
                Query(
                    f"60 * sum by (worker_id) (rate({series('encoder_decode_lost_total')}{WINDOW}))",
                    "{{worker_id}} lost a minute",
                ),
            ),
        ),
    ),
)

ROWS_TRANSFER = Row(
    "4 Encoder to prefill",
    (
        Panel(
            "Seconds of a request",
            "p90 of reading a request's rows from the encoder.",
            "Slow over `nixl` on one host: `triptych status` says why no nearer way is taken.",
            "s",
            stage_seconds("rows_transfer"),
            limits=Limits(0.1, 1),
        ),
        Panel(
            "One copy",
            "Median and p99 of one copy of rows, by transport.",
            "A p99 in seconds: the owner was slow to record its event, or the network is full.",
            "s",
            (
                Query(quantile(0.5, "transfer_seconds", "transport", owner_role="encode"), "{{transport}} p50"),
                Query(quantile(0.99, "transfer_seconds", "transport", owner_role="encode"), "{{transport}} p99"),
            ),
        ),
        Panel(
            "Rows",
            "Bytes a second that prefill workers read from encoders.",
            "Much over `nixl` and little room on the network: place tiers on one node (`serve.placement`).",
            "Bps",
            (Query(rate("transfer_bytes", "transport", suffix="_sum", owner_role="encode"), "{{transport}}"),),
        ),
        Panel(
            "Landing memory",
            "Reserved at prefill workers for rows that are being read or not yet fused.",
            "At its limit prompts wait for it, as the next row shows: `language.landing_bytes`.",
            "bytes",
            (Query(total("landing_bytes", "worker_id"), "{{worker_id}}"),),
        ),
    ),
)

ARENA = Row(
    "Cache of rows at encoders",
    (
        Panel(
            "Found",
            "Share of images whose rows were ready, and of those that joined an encode in flight.",
            "Falls when memory is short for what comes again: `encoder.arena_bytes`, `encoder.host_cache_bytes`.",
            "percentunit",
            (
                Query(
                    share(
                        rate("encoder_cache_hits_total"),
                        f"{rate('encoder_cache_hits_total')} + {rate('encoder_items_encoded_total')}",
                    ),
                    "ready",
                ),
                Query(
                    share(
                        rate("encoder_cache_joins_total"),
                        f"{rate('encoder_cache_joins_total')} + {rate('encoder_items_encoded_total')}",
                    ),
                    "in flight",
                ),
            ),
        ),
        Panel(
            "Encoded twice",
            "Images a second that one encoder encoded although another had their rows. 0 is the goal.",
            "Above 0: requests with the same image came to different encoders, mostly when one was lost.",
            "ops",
            (Query(rate("encoder_duplicate_encodes_total"), "twice"),),
            limits=Limits(0.1, 1),
        ),
        Panel(
            "Arena",
            "Share of the arena that is claimed or cached, and share of the free bytes outside the longest free run.",
            "A full arena is normal: cached rows make room. Full of claims is not: requests hold rows and wait.",
            "percentunit",
            (
                Query(total("encoder_arena_usage_ratio", "worker_id"), "{{worker_id}} used"),
                Query(total("encoder_arena_fragmentation_ratio", "worker_id"), "{{worker_id}} fragmented"),
            ),
        ),
        Panel(
            "Evictions",
            "Items a second that made room, were too large, or were made anew while old rows were still read.",
            "Evictions with a falling share of hits: a larger arena. Refusals: the arena is smaller than one image.",
            "ops",
            (
                Query(rate("encoder_cache_evictions_total"), "evicted"),
                Query(rate("encoder_cache_oversize_total"), "too large"),
                Query(rate("encoder_cache_replacements_total"), "made anew"),
            ),
        ),
        Panel(
            "What encoders keep",
            "Items whose rows are ready, and claims on rows.",
            "Claims that stay when no request is in flight are a leak: an alert says so.",
            "short",
            (
                Query(total("encoder_cache_entries", "worker_id"), "{{worker_id}} items"),
                Query(total("encoder_claims", "worker_id"), "{{worker_id}} claims"),
            ),
        ),
        Panel(
            "Rows in host memory",
            "Items a second whose rows went from the arena to the host, and came back.",
            "Those that come back tell what host memory is worth; failures, that the host is short of it.",
            "ops",
            (
                Query(rate("encoder_host_demotions_total"), "to the host"),
                Query(rate("encoder_host_promotions_total"), "back"),
                Query(rate("encoder_host_failures_total"), "failed"),
            ),
        ),
    ),
)
