"""Spans of OpenTelemetry across the tiers, as a collector gets them over OTLP."""

import asyncio
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.router.observe.collector import SECONDS, Collector, told
from tests.router.serving import chat_body, picture, serving, tiers
from triptych.config import ObserveSettings
from triptych.errors import InvalidMedia
from triptych.models.card import ModelCard
from triptych.router.observe.trace_context import read_traceparent

pytestmark = pytest.mark.anyio
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def test_a_request_is_one_trace_through_all_tiers_below_its_clients_span(
    card: ModelCard, collector: Collector
) -> None:
    observe, workers = ObserveSettings(otlp_endpoint=collector.url), tiers(card, "e", "p", "d")
    async with serving(card, workers, observe=observe, api_keys=("alice=the-key",)) as served:
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "authorization": "Bearer the-key"}
        body = chat_body([picture(), {"type": "text", "text": "the prompt"}], max_tokens=3)
        response = await served.client.post("/v1/chat/completions", json=body, headers=headers)
        spans = await asyncio.to_thread(collector.spans)
    assert {span.trace_id.hex() for _, span in spans} == {TRACE}
    (root,) = [span for _, span in spans if span.parent_span_id.hex() == SPAN]
    attributes = told(root.attributes)
    assert (root.name, root.kind) == ("chat tiny_vl", Span.SPAN_KIND_SERVER)
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.usage.output_tokens"] == 3
    assert attributes["triptych.request.id"] == response.headers["x-request-id"]
    service_by_id = {span.span_id: service for service, span in spans}
    by_id = {span.span_id: span for _, span in spans}
    assert len(by_id) == len(spans)
    assert all(span.parent_span_id in by_id for _, span in spans if span is not root)
    for role, stage in (("encode", "encode"), ("prefill", "prefill"), ("decode", "handover")):
        (span,) = [span for service, span in spans if service == f"triptych-{role}" and span.name == stage]
        call = by_id[span.parent_span_id]
        assert (call.name, call.kind) == (f"{role} call", Span.SPAN_KIND_CLIENT)
        assert service_by_id[call.span_id] == "triptych-router"
        assert worker_parents(workers) == {f"00-{TRACE}-{root.span_id.hex()}-01"}
    text = "\n".join(str(span) for _, span in spans)
    assert not [secret for secret in ("the-key", "the prompt", "base64") if secret in text]


async def test_a_request_without_a_client_span_is_a_root_and_its_spans_have_times(
    card: ModelCard, collector: Collector
) -> None:
    async with serving(card, tiers(card, "epd"), observe=ObserveSettings(otlp_endpoint=collector.url)) as served:
        await served.chat([picture()], max_tokens=2)
        spans = await asyncio.to_thread(collector.spans)
        (entry,) = served.router.recent.entries()
    (root,) = [span for _, span in spans if not span.parent_span_id]
    assert root.status.code == Status.STATUS_CODE_UNSET
    assert root.end_time_unix_nano - root.start_time_unix_nano == pytest.approx(entry.seconds * 1e9, abs=1000)
    wanted = [(stage.stage, entry.started + stage.begin, entry.started + stage.end) for stage in entry.timeline.spans]
    found = [
        (span.name, span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9)
        for _, span in spans
        if span.kind == Span.SPAN_KIND_INTERNAL
    ]
    for (name, *times), (wanted_name, *wanted_times) in zip(sorted(found), sorted(wanted), strict=True):
        assert name == wanted_name
        assert times == pytest.approx(wanted_times, abs=2e-6, rel=0)  # what a double has of seconds since 1970


async def test_a_request_that_fails_says_with_what(card: ModelCard, collector: Collector) -> None:
    async with serving(card, tiers(card, "epd"), observe=ObserveSettings(otlp_endpoint=collector.url)) as served:
        served.workers[0].fail_item[0] = InvalidMedia("no picture")
        assert (await served.chat([picture()], max_tokens=2)).status_code == 400
        spans = await asyncio.to_thread(collector.spans)
    (root,) = [span for _, span in spans if not span.parent_span_id]
    assert root.status.code == Status.STATUS_CODE_ERROR
    assert told(root.attributes)["error.type"] == root.status.message


async def test_a_client_or_a_share_that_wants_no_trace_has_none(card: ModelCard, collector: Collector) -> None:
    observe = ObserveSettings(otlp_endpoint=collector.url, trace_share=0.0)
    async with serving(card, tiers(card, "epd"), observe=observe) as served:
        await served.chat()
        unwanted = {"traceparent": f"00-{TRACE}-{SPAN}-00"}
        await served.client.post("/v1/chat/completions", json=chat_body(max_tokens=1), headers=unwanted)
        wanted = {"traceparent": f"00-{'ab' * 16}-{SPAN}-01"}
        await served.client.post("/v1/chat/completions", json=chat_body(max_tokens=1), headers=wanted)
        spans = await asyncio.to_thread(collector.spans)
        assert {span.trace_id.hex() for _, span in spans} == {"ab" * 16}
    assert collector.taken.empty()


async def test_prompts_of_one_request_are_spans_side_by_side(card: ModelCard, collector: Collector) -> None:
    async with serving(card, tiers(card, "epd"), observe=ObserveSettings(otlp_endpoint=collector.url)) as served:
        asked = {"model": "tiny_vl", "prompt": ["hello", "hello there", "bye"], "max_tokens": 2}
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
        assert (await served.client.post("/v1/completions", json=asked, headers=headers)).status_code == 200
        spans: list[tuple[str, Span]] = []
        while len(roots := [span for _, span in spans if span.parent_span_id.hex() == SPAN]) < 3:
            spans += await asyncio.to_thread(collector.spans)
    assert len({span.span_id for _, span in spans}) == len(spans)
    assert {span.trace_id.hex() for _, span in spans} == {TRACE}
    for root in roots:
        below = [span.name for _, span in spans if span.parent_span_id == root.span_id]
        assert below.count("prefill call") == 1


async def test_requests_go_on_while_no_collector_answers(card: ModelCard, collector: Collector) -> None:
    collector.hold()
    async with serving(card, tiers(card, "epd"), observe=ObserveSettings(otlp_endpoint=collector.url)) as served:
        assert (await served.chat(max_tokens=1)).status_code == 200
        assert await asyncio.to_thread(collector.has_come.acquire, timeout=SECONDS)
        assert (await served.chat(max_tokens=1)).status_code == 200
        collector.go_on()
        posts = [await asyncio.to_thread(collector.spans) for _ in range(2)]
    assert [sum(not span.parent_span_id for _, span in spans) for spans in posts] == [1, 1]


@pytest.mark.parametrize(
    "header",
    [
        *("", "00", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{SPAN}-01"),
        *(f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01-more", f"00-{TRACE}-{SPAN}"),
    ],
)
def test_a_header_that_breaks_the_rules_is_none(header: str) -> None:
    assert read_traceparent(header) is None


def worker_parents(workers: Any) -> set[str]:
    return set().union(*(worker.traceparents for worker in workers))
