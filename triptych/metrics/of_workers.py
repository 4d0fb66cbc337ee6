"""What workers tell, and what a router makes of it: one series for each worker.

Whatever only ever rises is a counter, as long as its worker lives; a restarted one begins at 0.
"""

from triptych.metrics.metric import (
    BATCH_ITEMS_BUCKETS,
    BATCH_ROWS_BUCKETS,
    COPY_BYTES_BUCKETS,
    COPY_SECONDS_BUCKETS,
    PREFIX,
    Metric,
    WorkerMetric,
)

# What StatusReply.gauges may hold; every worker reports those of its roles.
WORKER_GAUGES = (
    WorkerMetric("encoder_queued_items", "gauge", "Items waiting, being prepared or encoded"),
    WorkerMetric("encoder_queued_tokens", "gauge", "Patches of those items"),
    WorkerMetric("encoder_waiting_jobs", "gauge", "Requests' waits for those items; several may wait for one"),
    WorkerMetric("encoder_preprocess_queued_items", "gauge", "Items waiting for a preprocessing thread"),
    WorkerMetric("encoder_decode_processes", "gauge", "Processes that images are decoded in"),
    WorkerMetric(
        *("encoder_decode_lost_total", "counter", "Of these, those that died, or were ended with an image overdue"),
    ),
    WorkerMetric("encoder_prepared_tokens", "gauge", "Patches prepared or being so, not yet in a batch"),
    WorkerMetric(
        *(
            "encoder_preprocess_seconds_total",
            "counter",
            "Seconds spent decoding, resizing and normalising",
            "encoder_preprocess_busy_seconds_total",
        ),
    ),
    WorkerMetric(
        *(
            "encoder_encode_seconds_total",
            "counter",
            "Seconds the device loop spent on batches",
            "encoder_model_forward_busy_seconds_total",
        ),
    ),
    WorkerMetric("encoder_arena_bytes", "gauge", "Size of the embedding arena"),
    WorkerMetric("encoder_arena_free_bytes", "gauge", "Arena bytes neither claimed nor cached"),
    WorkerMetric(
        *("encoder_arena_largest_free_bytes", "gauge", "The longest run of them: what an item without evictions gets"),
    ),
    WorkerMetric("encoder_arena_fragmentation_ratio", "gauge", "Share of the free bytes outside the longest free run"),
    WorkerMetric("encoder_claims", "gauge", "Claims on embedding rows, of requests that wait or may read"),
    WorkerMetric("encoder_cached_items", "gauge", "Items whose rows are ready in the arena", "encoder_cache_entries"),
    WorkerMetric("encoder_cache_hits_total", "counter", "Items found ready"),
    WorkerMetric("encoder_cache_joins_total", "counter", "Items that joined an encode in flight"),
    WorkerMetric("encoder_cache_evictions_total", "counter", "Items whose rows made room for others"),
    WorkerMetric("encoder_cache_oversize_total", "counter", "Items refused because their rows never fit the arena"),
    WorkerMetric(
        *("encoder_cache_replacements_total", "counter", "Items made anew while old rows of theirs were still read"),
    ),
    WorkerMetric("encoder_cache_pinned_bytes", "gauge", "Rows that operators have pinned"),
    WorkerMetric("encoder_host_bytes", "gauge", "Size of the host memory for rows that had to leave the arena"),
    WorkerMetric("encoder_host_free_bytes", "gauge", "Bytes of it without rows"),
    WorkerMetric("encoder_host_demotions_total", "counter", "Items whose rows went from the arena to the host"),
    WorkerMetric("encoder_host_promotions_total", "counter", "Items whose rows came back from the host"),
    WorkerMetric("encoder_host_failures_total", "counter", "Copies to or from the host that failed"),
    WorkerMetric("encoder_budget_items", "gauge", "Items one batch may hold"),
    WorkerMetric("encoder_budget_tokens", "gauge", "Encoder tokens one batch may hold, raised to the largest item"),
    WorkerMetric("encoder_budget_output_bytes", "gauge", "Bytes for rows being made or read"),
    WorkerMetric("encoder_budget_reuse_bytes", "gauge", "Bytes for rows kept for reuse"),
    WorkerMetric("encoder_prepared_bytes", "gauge", "Bytes of images prepared or being so, not yet in a batch"),
    WorkerMetric("encoder_graph_replays_total", "counter", "Batches that replayed a captured graph"),
    WorkerMetric("encoder_graph_misses_total", "counter", "Batches that fitted no captured graph and ran eagerly"),
    WorkerMetric("encoder_items_encoded_total", "counter", "Items that went through the vision tower"),
    WorkerMetric("kv_blocks", "gauge", "KV blocks in the pool"),
    WorkerMetric("kv_free_blocks", "gauge", "KV blocks neither held nor reserved"),
    WorkerMetric("kv_cached_blocks", "gauge", "Free KV blocks whose content can still be reused"),
    WorkerMetric(
        *(
            "prefix_lookup_tokens_total",
            "counter",
            "Prompt tokens looked up among cached KV",
            "prefix_cache_queries_total",
        ),
    ),
    WorkerMetric("prefix_hit_tokens_total", "counter", "Prompt tokens found there", "prefix_cache_hits_total"),
    WorkerMetric("prefill_windows_waiting", "gauge", "Windows of accepted prompts that wait for landing rows"),
    WorkerMetric("prefill_queued_tokens", "gauge", "Prompt tokens accepted or waiting, not yet computed"),
    WorkerMetric("prefill_requests", "gauge", "Prompts accepted or waiting"),
    WorkerMetric("decode_sequences", "gauge", "Sequences decoding"),
    WorkerMetric("decode_reservations_queued", "gauge", "Requests waiting for KV blocks"),
    WorkerMetric("preempted_sequences", "gauge", "Sequences that make room for others until there are KV blocks again"),
    WorkerMetric("preemptions_swapped_total", "counter", "Sequences whose KV went to host memory to make room"),
    WorkerMetric("preemptions_stalled_total", "counter", "Sequences that stood still until others gave blocks back"),
    WorkerMetric("preemptions_ended_total", "counter", "Sequences ended to make room, host memory being full"),
    WorkerMetric(
        *("preemption_resumes_total", "counter", "Sequences that went on after they had made room, or stood still"),
    ),
    WorkerMetric("swap_bytes", "gauge", "Host memory for the KV of those that make room"),
    WorkerMetric("swap_free_bytes", "gauge", "Bytes of it without KV"),
    WorkerMetric("swapped_out_bytes_total", "counter", "KV copied to host memory"),
    WorkerMetric("swapped_in_bytes_total", "counter", "KV copied back from there"),
    WorkerMetric(
        *("kv_sent_tokens_total", "counter", "Prompt tokens whose KV came from another worker to be decoded behind"),
    ),
    WorkerMetric(
        *("kv_kept_tokens_total", "counter", "Prompt tokens whose KV was at the decode worker already, and not sent"),
    ),
    WorkerMetric("landing_bytes", "gauge", "Landing memory reserved for embedding rows"),
    WorkerMetric("claims", "gauge", "Claims on exported memory"),
    WorkerMetric("claims_granted_total", "counter", "Claims ever granted"),
    WorkerMetric("claims_released_total", "counter", "Claims given back, or ended with their request"),
    WorkerMetric("late_releases_total", "counter", "Releases of claims that were gone already"),
    WorkerMetric("expired_claims_total", "counter", "Claims ended by the sweeper"),
    WorkerMetric(
        *("transfer_lost_copies", "gauge", "Copies given up that have not ended, each holding memory until then"),
    ),
    WorkerMetric("transfer_failures_total", "counter", "Copies out of neighbours' memory that failed"),
    WorkerMetric("rss_bytes", "gauge", "Resident memory of the process"),
    WorkerMetric("device_bytes", "gauge", "Device memory allocated by the process"),
    WorkerMetric("cpu_seconds_total", "counter", "Processor time of the process", "worker_cpu_seconds_total"),
    WorkerMetric(
        *("start_time_seconds", "gauge", "When the worker began, seconds since 1970"),
        exposed_as="worker_start_time_seconds",
    ),
)

WORKER_LABELS = ("worker_id", "worker_type")

# What StatusReply.histograms may hold, by name without the prefix.
WORKER_HISTOGRAMS = (
    Metric(
        *(PREFIX + "encoder_mm_items_per_batch", "histogram", "Items of one batch of the vision tower"),
        *(WORKER_LABELS, BATCH_ITEMS_BUCKETS),
    ),
    Metric(
        *(PREFIX + "encoder_rows_per_batch", "histogram", "Embedding rows that one batch of the vision tower makes"),
        *(WORKER_LABELS, BATCH_ROWS_BUCKETS),
    ),
)

# Made of the above, worker by worker.
DERIVED_METRICS = (
    Metric(PREFIX + "kv_cache_usage_perc", "gauge", "KV blocks held or reserved; 1 is all", WORKER_LABELS),
    Metric(PREFIX + "encoder_arena_usage_ratio", "gauge", "Arena bytes claimed or cached; 1 is all", WORKER_LABELS),
    Metric(PREFIX + "num_preemptions_total", "counter", "Sequences that made room, whichever way", WORKER_LABELS),
)

_PAIR_LABELS = (*WORKER_LABELS, "owner_role", "consumer_role", "transport")

# Made of what StatusReply tells of paths and copies; the worker is the one that reads.
PAIR_METRIC = Metric(
    PREFIX + "transfer_pair_info", "gauge", "Neighbours by the path to them; transport none: no path", _PAIR_LABELS
)
COPY_SECONDS_METRIC = Metric(
    *(PREFIX + "transfer_seconds", "histogram", "One copy out of a neighbour's memory, its checks included"),
    *(_PAIR_LABELS, COPY_SECONDS_BUCKETS),
)
COPY_BYTES_METRIC = Metric(
    *(PREFIX + "transfer_bytes", "histogram", "Bytes of one copy out of a neighbour's memory"),
    *(_PAIR_LABELS, COPY_BYTES_BUCKETS),
)
PAIR_METRICS = (PAIR_METRIC, COPY_SECONDS_METRIC, COPY_BYTES_METRIC)
