"""What is counted of a request once its answer has ended: nothing on the way of its tokens waits for it."""

from collections.abc import Mapping

from triptych.metrics import RouterMetrics
from triptych.router.observe.timeline import Span
from triptych.router.pipeline.request import Request
from triptych.stages import Stage

_QUEUES = ("place", "reserve", "prefill_queue")
_ITEM_METRICS = {
    "encode_queue": "triptych:encoder_queue_wait_seconds",
    "preprocess": "triptych:encoder_preprocess_seconds",
    "encode": "triptych:encoder_model_forward_seconds",
}


class RequestSeconds:
    """Of a request that has ended, each from what the router measured and the workers told.

    hosts: that it waited for those of its images
    ttft: math.nan where no token came, as all that follow it
    """

    def __init__(self, request: Request) -> None:
        timeline = request.timeline
        self.stages: Mapping[str, float] = timeline.seconds
        self.hosts = timeline.hosts_seconds
        ended_at = request.moments[-1][1] - timeline.started_at
        self.e2e = ended_at if request.has_ended else timeline.since_start()
        self.queue = sum(self.stages.get(stage, 0.0) for stage in _QUEUES)
        self.ttft = self.tpot = self.prefill = self.decode = float("nan")
        first = timeline.first_token
        if first is None:
            return
        self.ttft = first
        self.decode = max(0.0, self.e2e - first)
        self.prefill = max(0.0, first - _admitted_at(timeline.spans))
        steps = max(map(len, request.generated)) - 1
        self.tpot = self.decode / steps if steps > 0 else 0.0


def observe_end(metrics: RouterMetrics, request: Request, seconds: RequestSeconds) -> None:
    """Every request that was set on its way, however it has ended."""
    has_finished = request.stage is Stage.FINISHED
    if has_finished:  # failures are quick where there is no room, and clients that leave were never answered
        metrics.observe("triptych:e2e_request_latency_seconds", seconds.e2e)
    for stage, lasted in seconds.stages.items():
        metrics.observe("triptych:stage_duration_seconds", lasted, stage=stage)
    num_tokens = sum(map(len, request.generated))
    metrics.count("triptych:generation_tokens_total", num_tokens)
    metrics.count("triptych:prompt_tokens_cached_total", request.cached_tokens)
    metrics.observe("triptych:request_generation_tokens", num_tokens)
    for span in request.timeline.spans:
        if span.item >= 0:
            _observe_item(metrics, request, span)
    if request.timeline.first_token is None:
        return
    metrics.observe("triptych:request_queue_time_seconds", seconds.queue)
    metrics.observe("triptych:request_prefill_time_seconds", seconds.prefill)
    if has_finished:
        metrics.observe("triptych:request_decode_time_seconds", seconds.decode)
        metrics.observe("triptych:request_inference_time_seconds", seconds.prefill + seconds.decode)
    if max(map(len, request.generated)) > 1:
        metrics.observe("triptych:request_time_per_output_token_seconds", seconds.tpot)


def observe_start(metrics: RouterMetrics, request: Request) -> None:
    prepared, layout = request.prepared, request.prepared.layout
    metrics.count("triptych:prompt_tokens_total", layout.num_tokens)
    metrics.count("triptych:image_tokens_total", layout.num_rows)
    metrics.observe("triptych:request_prompt_tokens", layout.num_tokens)
    metrics.observe("triptych:request_params_max_tokens", prepared.sampling.max_tokens)
    metrics.observe("triptych:request_params_n", prepared.branches)
    if layout.items:
        metrics.count("triptych:images_total", len(layout.items))
        metrics.observe("triptych:encoder_mm_items_per_request", len(layout.items))


def _observe_item(metrics: RouterMetrics, request: Request, span: Span) -> None:
    """Whose rows were there already waited for nothing, and was neither decoded nor encoded."""
    name, lasted, items = _ITEM_METRICS.get(span.stage), span.end - span.begin, request.prepared.layout.items
    if name is not None and lasted > 0 and span.item < len(items):  # which a worker has told
        modality = items[span.item].modality
        metrics.observe(name, lasted, modality=modality)


def _admitted_at(spans: list[Span]) -> float:
    """When the prompt had room at its prefill worker, in seconds since the request came; the latest attempt's."""
    ends = [span.end for span in spans if span.stage in _QUEUES]
    return max(ends, default=0.0)


def is_waiting(stage: Stage) -> bool:
    """For a worker, for blocks or for landing rows."""
    return stage in (Stage.LAID_OUT, Stage.RESERVING)
