"""What a request's seconds are made of, on a timeline made by hand."""

import pytest

from tests.metrics.test_books import samples
from tests.router.requests import text_request, tokens_of
from triptych.metrics import RouterMetrics
from triptych.pb.common_pb2 import StageTime
from triptych.router.observe.request_figures import RequestSeconds, observe_end
from triptych.router.observe.timeline import Span
from triptych.router.pipeline.request import Request
from triptych.stages import Stage


def ended_request() -> Request:
    """0.1 s of queues up to 0.4 s, the first of five tokens at 1 s, the last one at 3 s, then a slow client."""
    request = text_request()
    timeline = request.timeline
    timeline.spans += [Span("place", 0.2, 0.25), Span("prefill_queue", 0.35, 0.4, "prefill-0")]
    request.deliver(tokens_of([1, 2, 3, 4, 5]))
    timeline.first_token = 1.0
    request.stage = Stage.DECODING
    request.end(Stage.FINISHED)
    request.moments[-1] = (Stage.FINISHED, timeline.started_at + 3.0)
    timeline.started_at -= 5.0
    request.moments = [(stage, at - 5.0) for stage, at in request.moments]
    return request


def test_a_requests_time_is_queue_prefill_and_decode_and_ends_with_the_last_token() -> None:
    seconds = RequestSeconds(ended_request())
    assert seconds.queue == pytest.approx(0.1)
    assert seconds.prefill == pytest.approx(0.6)
    assert seconds.decode == pytest.approx(2.0)
    assert seconds.tpot == pytest.approx(0.5)
    assert (seconds.ttft, seconds.e2e) == (1.0, pytest.approx(3.0))


def test_a_request_that_had_no_token_tells_of_no_prefill_and_of_no_decoding() -> None:
    metrics, request = RouterMetrics(), text_request()
    request.end(Stage.CANCELLED)
    observe_end(metrics, request, RequestSeconds(request))
    observe_end(metrics, ended := ended_request(), RequestSeconds(ended))
    found = samples(metrics.expose())
    counts = {name: found[f"triptych:{name}_count{{}}"] for name in ("e2e_request_latency_seconds", *_OF_TOKENS)}
    assert counts == dict.fromkeys(counts, 1)
    assert found["triptych:request_inference_time_seconds_sum{}"] == pytest.approx(2.6)
    assert found["triptych:stage_duration_seconds_count{stage=prefill_queue}"] == 1


def test_an_answer_that_was_broken_off_has_no_last_token_to_be_timed_by() -> None:
    metrics, request = RouterMetrics(), ended_request()
    request.stage = Stage.CANCELLED
    observe_end(metrics, request, RequestSeconds(request))
    found = samples(metrics.expose())
    to_the_last = ("e2e_request_latency_seconds", "request_decode_time_seconds", "request_inference_time_seconds")
    assert [found[f"triptych:{name}_count{{}}"] for name in to_the_last] == [0, 0, 0]
    assert found["triptych:request_prefill_time_seconds_count{}"] == 1


def test_what_a_worker_tells_of_a_stage_or_an_item_that_is_none_harms_nobody() -> None:
    metrics, request = RouterMetrics(), ended_request()
    told = [
        StageTime(stage="encode", seconds=0.1, item_index=7),
        StageTime(stage="x;\r\ny: z", seconds=0.1),
    ]
    before = len(request.timeline.spans)
    request.timeline.add_told("encode", "e", request.timeline.started_at, told, since_arrival=0.2)
    assert [span.stage for span in request.timeline.spans[before:]] == ["encode"]
    observe_end(metrics, request, RequestSeconds(request))
    found = samples(metrics.expose())
    assert found["triptych:stage_duration_seconds_count{stage=encode}"] == 1
    assert not any(name.startswith("triptych:encoder_model_forward_seconds_count") for name in found)


_OF_TOKENS = (
    *("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
    *("request_inference_time_seconds", "request_time_per_output_token_seconds"),
)
