"""Spans of OpenTelemetry across the tiers, as a collector gets them over OTLP."""

import asyncio
import base64
import json
import queue
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import json_format

from tests.router.serving import chat_body, picture, serving, tiers
from tests.web import QuietHandler, WebServer
from triptych.config import ObserveSettings
from triptych.models.card import ModelCard
from triptych.router.observe.trace_context import read_traceparent
from triptych.router.observe.traces import Traces

pytestmark = pytest.mark.anyio
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECONDS = 10.0


class Collector:
    """What was posted to /v1/traces."""

    def __init__(self) -> None:
        self.bodies: queue.Queue[dict[str, Any]] = queue.Queue()
        collector = self

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                assert self.headers["content-type"] == "application/json"
                if self.path == "/v1/traces":
                    collector.bodies.put(json.loads(data))
                self.answer(200, {"content-type": "application/json"}, b"{}")

        self.server = WebServer(Handler)

    def spans(self) -> list[tuple[str, dict[str, Any]]]:
        """Of the next body: each with the name of its service."""
        body = self.bodies.get(timeout=SECONDS)
        return [
            (told(one["resource"])["service.name"], span)
            for one in body["resourceSpans"]
            for scope in one["scopeSpans"]
            for span in scope["spans"]
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    with made.server:
        yield made


def told(of: dict[str, Any]) -> dict[str, Any]:
    return {pair["key"]: next(iter(pair["value"].values())) for pair in of["attributes"]}


async def test_a_request_is_one_trace_through_all_tiers_below_its_clients_span(
    card: ModelCard, collector: Collector
) -> None:
    observe, workers = ObserveSettings(otlp_endpoint=collector.server.url), tiers(card, "e", "p", "d")
    async with serving(card, workers, observe=observe, api_keys=("alice=the-key",)) as served:
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "authorization": "Bearer the-key"}
        body = chat_body([picture(), {"type": "text", "text": "the prompt"}], max_tokens=3)
        response = await served.client.post("/v1/chat/completions", json=body, headers=headers)
        spans = await asyncio.to_thread(collector.spans)
    assert {span["traceId"] for _, span in spans} == {TRACE}
    (root,) = [span for _, span in spans if span["parentSpanId"] == SPAN]
    attributes = told(root)
    assert root["name"] == "chat tiny_vl"
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.usage.output_tokens"] == "3"
    assert attributes["triptych.request.id"] == response.headers["x-request-id"]
    service_by_id = {span["spanId"]: service for service, span in spans}
    by_id = {span["spanId"]: span for _, span in spans}
    assert len(by_id) == len(spans)
    assert all(span["parentSpanId"] in by_id for _, span in spans if span is not root)
    for role, stage in (("encode", "encode"), ("prefill", "prefill"), ("decode", "handover")):
        (span,) = [span for service, span in spans if service == f"triptych-{role}" and span["name"] == stage]
        call = by_id[span["parentSpanId"]]
        assert call["name"] == f"{role} call"
        assert service_by_id[call["spanId"]] == "triptych-router"
        assert worker_parents(workers) == {f"00-{TRACE}-{root['spanId']}-01"}
    text = json.dumps(spans)
    assert not [secret for secret in ("the-key", "the prompt", "base64") if secret in text]


async def test_what_is_sent_is_what_the_protocol_describes(card: ModelCard, collector: Collector) -> None:
    trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    async with serving(card, tiers(card, "epd"), observe=ObserveSettings(otlp_endpoint=collector.server.url)) as served:
        await served.chat([picture()], max_tokens=2)
        body = await asyncio.to_thread(collector.bodies.get, timeout=SECONDS)
    for one in body["resourceSpans"]:
        for span in one["scopeSpans"][0]["spans"]:
            for name in ("traceId", "spanId", "parentSpanId"):  # in hexadecimal, alone among all bytes
                span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    request = json_format.ParseDict(body, trace_service.ExportTraceServiceRequest())
    spans = [span for one in request.resource_spans for span in one.scope_spans[0].spans]
    assert {len(span.trace_id) for span in spans} == {16}
    assert {len(span.span_id) for span in spans} == {8}
    assert sum(not span.parent_span_id for span in spans) == 1
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)


async def test_a_client_or_a_share_that_wants_no_trace_has_none(card: ModelCard, collector: Collector) -> None:
    observe = ObserveSettings(otlp_endpoint=collector.server.url, trace_share=0.0)
    async with serving(card, tiers(card, "epd"), observe=observe) as served:
        await served.chat()
        unwanted = {"traceparent": f"00-{TRACE}-{SPAN}-00"}
        await served.client.post("/v1/chat/completions", json=chat_body(max_tokens=1), headers=unwanted)
        wanted = {"traceparent": f"00-{'ab' * 16}-{SPAN}-01"}
        await served.client.post("/v1/chat/completions", json=chat_body(max_tokens=1), headers=wanted)
        spans = await asyncio.to_thread(collector.spans)
        assert {span["traceId"] for _, span in spans} == {"ab" * 16}
    assert collector.bodies.empty()


async def test_prompts_of_one_request_are_spans_side_by_side(card: ModelCard, collector: Collector) -> None:
    async with serving(card, tiers(card, "epd"), observe=ObserveSettings(otlp_endpoint=collector.server.url)) as served:
        asked = {"model": "tiny_vl", "prompt": ["hello", "hello there", "bye"], "max_tokens": 2}
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
        assert (await served.client.post("/v1/completions", json=asked, headers=headers)).status_code == 200
        spans: list[tuple[str, dict[str, Any]]] = []
        while len(roots := [span for _, span in spans if span["parentSpanId"] == SPAN]) < 3:
            spans += await asyncio.to_thread(collector.spans)
    assert len({span["spanId"] for _, span in spans}) == len(spans)
    assert {span["traceId"] for _, span in spans} == {TRACE}
    for root in roots:
        below = [span["name"] for _, span in spans if span["parentSpanId"] == root["spanId"]]
        assert below.count("prefill call") == 1


async def test_requests_go_on_while_no_collector_is_there_and_what_is_lost_is_counted(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd"), observe=ObserveSettings(otlp_endpoint="http://127.0.0.1:9")) as served:
        assert (await served.chat(max_tokens=1)).status_code == 200
        (entry,) = served.router.recent.entries()
    traces = Traces(ObserveSettings(otlp_endpoint="http://127.0.0.1:9"), "m", most_queued=1)
    traces.add(entry)
    traces.add(entry)  # which finds no room
    lost = traces.num_dropped
    assert lost > 1
    traces.start()
    await asyncio.to_thread(traces.close)
    assert traces.num_dropped == 2 * lost


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
