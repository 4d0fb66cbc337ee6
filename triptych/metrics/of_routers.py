"""What a router counts itself, in the order of a request's way."""

from triptych.errors import ERROR_BY_NAME
from triptych.metrics.metric import (
    COUNT_BUCKETS,
    ITL_BUCKETS,
    LATENCY_BUCKETS,
    PREFIX,
    STAGE_BUCKETS,
    TOKEN_BUCKETS,
    TTFT_BUCKETS,
    Metric,
)
from triptych.stages import TIMED_STAGES, Stage

_ERRORS = {"error": frozenset(ERROR_BY_NAME)}
_STAGES = {"stage": frozenset(stage.name for stage in TIMED_STAGES)}
_ROLES = {"stage": frozenset({"encode", "prefill", "decode"})}
_MODALITIES = frozenset({"image", "video", "audio"})
_REASONS = frozenset({"stop", "length", "tool_calls"})
_REFUSALS = frozenset({"key", "role", "limit", "body", "head", "malformed", "connections", "overload", "site"})
_OUTCOMES = frozenset({"fetched", "renewed", "kept", "joined", "file", "failed"})
_ITEM_LABELS, _ITEM_VALUES = ("modality",), {"modality": _MODALITIES}


def _counter(name: str, help_: str, *labels: str, **values: frozenset[str]) -> Metric:
    return Metric(PREFIX + name, "counter", help_, labels, values=values)


def _seconds(name: str, help_: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(PREFIX + name, "histogram", help_, (), buckets)


def _of_items(name: str, help_: str) -> Metric:
    return Metric(PREFIX + name, "histogram", help_, _ITEM_LABELS, STAGE_BUCKETS, _ITEM_VALUES)


_HTTP = (
    _counter("requests_total", "HTTP requests, by endpoint and status class", "endpoint", "status"),
    _counter(
        "rejected_requests_total",
        "Requests refused at the door, connections among them that nobody listened to",
        "reason",
        reason=_REFUSALS,
    ),
    Metric(PREFIX + "request_errors_total", "counter", "Failed requests by error class", ("error",), values=_ERRORS),
    _counter("usage_log_dropped_total", "Lines of the usage log lost to a slow disk"),
    _counter("request_log_dropped_total", "Lines of requests lost since they came faster than they can be written"),
    _counter("trace_spans_dropped_total", "Spans lost since no collector took them in time"),
)

_REQUESTS = (
    _counter("request_success_total", "Finished choices", "finished_reason", finished_reason=_REASONS),
    Metric(PREFIX + "num_requests_running", "gauge", "Requests in flight, those that wait among them"),
    Metric(PREFIX + "num_requests_waiting", "gauge", "Of these, those that wait for workers, blocks or rows"),
    Metric(
        *(PREFIX + "requests_by_stage", "gauge", "Requests in flight, by the stage of their journey", ("stage",)),
        values={"stage": frozenset(Stage)},
    ),
    _counter("prompt_tokens_total", "Prompt tokens, images included"),
    _counter("prompt_tokens_cached_total", "Of these, those whose KV was there already"),
    _counter("image_tokens_total", "Of the prompt tokens, those that images stand for"),
    _counter("generation_tokens_total", "Generated tokens"),
    Metric(PREFIX + "request_prompt_tokens", "histogram", "Prompt tokens of a request", (), TOKEN_BUCKETS),
    Metric(PREFIX + "request_generation_tokens", "histogram", "Generated tokens of a request", (), TOKEN_BUCKETS),
    Metric(PREFIX + "request_params_max_tokens", "histogram", "Tokens a choice may have", (), TOKEN_BUCKETS),
    Metric(PREFIX + "request_params_n", "histogram", "Choices asked for", (), COUNT_BUCKETS),
    _seconds("time_to_first_token_seconds", "Arrival to first token", TTFT_BUCKETS),
    _seconds("inter_token_latency_seconds", "Between two tokens of a choice", ITL_BUCKETS),
    _seconds("request_time_per_output_token_seconds", "Mean of it over a request, behind its first token", ITL_BUCKETS),
    _seconds("e2e_request_latency_seconds", "Arrival to last token", LATENCY_BUCKETS),
    _seconds("request_queue_time_seconds", "Waiting for workers, blocks and rows, up to prefill", LATENCY_BUCKETS),
    _seconds("request_prefill_time_seconds", "From the end of that to the first token", LATENCY_BUCKETS),
    _seconds("request_decode_time_seconds", "First token to last token", LATENCY_BUCKETS),
    _seconds("request_inference_time_seconds", "Prefill and decode together", LATENCY_BUCKETS),
    Metric(
        *(PREFIX + "stage_duration_seconds", "histogram", "One stage of a request, as triptych/stages.py lists them"),
        *(("stage",), STAGE_BUCKETS, _STAGES),
    ),
)

_MEDIA = (
    _counter("images_total", "Images accepted"),
    Metric(PREFIX + "media_bytes", "gauge", "Compressed media held by requests in flight, bytes"),
    Metric(PREFIX + "media_budget_bytes", "gauge", "How many of them there may be"),
    _counter("media_fetches_total", "Images asked for by URL: how they were come by", "outcome", outcome=_OUTCOMES),
    Metric(PREFIX + "media_cache_bytes", "gauge", "Fetched images kept for the next request, bytes"),
    Metric(
        *(PREFIX + "media_names_bytes", "gauge", "Images kept by the uuid that their clients gave them, bytes"),
        among_routers="livemostrecent",
    ),
)

_ENCODER = (
    Metric(
        *(PREFIX + "encoder_requests_total", "counter", "Items asked of encoders: encoded, cached or failed"),
        *(("modality", "status"), ()),
        {"modality": _MODALITIES, "status": frozenset({"encoded", "cached", "failed"})},
    ),
    _counter(
        "encoder_duplicate_encodes_total",
        "Items encoded by one worker while another that this router knows had made the same rows before",
    ),
    Metric(PREFIX + "encoder_mm_items_per_request", "histogram", "Items of a request", (), COUNT_BUCKETS),
    _of_items("encoder_queue_wait_seconds", "One item's wait for a preprocessing thread and a batch"),
    _of_items("encoder_preprocess_seconds", "One item's decoding, resizing and normalising"),
    _of_items("encoder_model_forward_seconds", "The batch of the vision tower that an item was in"),
    _of_items("encoder_request_e2e_latency_seconds", "From asking an encoder for an item to its rows"),
)

_FAULTS = (
    Metric(
        *(PREFIX + "stage_errors_total", "counter", "Failures of a tier that requests met", ("stage", "error")),
        values=_ERRORS | _ROLES,
    ),
    Metric(PREFIX + "retries_total", "counter", "Stages tried again", ("stage",), values=_ROLES),
    Metric(
        *(PREFIX + "retry_budget", "gauge", "Retries that may be made at once, where there is least room for them"),
        among_routers="livemin",
    ),
    _counter(
        *("self_tests_total", "Self-tests of workers: passed, failed or wrong", "outcome"),
        outcome=frozenset({"passed", "failed", "wrong"}),
    ),
    _counter("worker_links_lost_total", "Workers that a router lost; each of several counts its own", "worker_type"),
    Metric(
        *(
            PREFIX + "workers",
            "gauge",
            "Workers that there are or are to be, by tier and state",
            ("worker_type", "state"),
        ),
        among_routers="livemostrecent",  # all of them know the same
    ),
    Metric(
        *(PREFIX + "build_info", "gauge", "1, for the server's version and its model", ("version", "model_name")),
        among_routers="livemax",
    ),
)

ROUTER_METRICS = (*_HTTP, *_REQUESTS, *_MEDIA, *_ENCODER, *_FAULTS)
