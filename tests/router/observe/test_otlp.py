"""How spans get to a collector, and what becomes of those that do not."""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.router.observe.collector import SECONDS, Collector, told
from triptych.config import ObserveSettings
from triptych.router.observe.recent import Entry
from triptych.router.observe.timeline import Call, Span, Timeline
from triptych.router.observe.trace_context import new_trace
from triptych.router.observe.traces import Traces

SPANS = 4  # of each request here
NOBODY = "http://127.0.0.1:9"
EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"  # its logger


@pytest.fixture
def begin() -> Iterator[Callable[..., Traces]]:
    """Makes traces that have been started, and closes them."""
    begun: list[Traces] = []

    def make(url: str, **options: Any) -> Traces:
        traces = Traces(ObserveSettings(otlp_endpoint=url), "some-model", **options)
        traces.start()
        begun.append(traces)
        return traces

    yield make
    for traces in begun:
        traces.close()


def finished(request_id: str = "some") -> Entry:
    """A request of four spans."""
    timeline = Timeline()
    timeline.spans += [Span("tokenize", 0.0, 0.1), Span("prefill", 0.2, 0.3, "prefill-0", off_by=0.01)]
    timeline.calls.append(Call("prefill", "prefill-0", 0.15, 0.35, 0.01))
    trace = new_trace()
    return Entry(request_id, "", "/v1/chat/completions", timeline, None, 0, 0, 3, 0, seconds=0.4, trace=trace)


def taken(collector: Collector) -> set[str]:
    """Requests in the next post."""
    spans = collector.taken.get(timeout=SECONDS).spans
    return {name for span in spans if (name := told(span.attributes).get("triptych.request.id"))}


def test_the_environment_says_how_spans_are_sent_and_the_settings_where_to(
    collector: Collector, begin: Callable[..., Traces], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", NOBODY)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=the%20key,x-team=pictures")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    begin(collector.url).add(finished())
    posted = collector.taken.get(timeout=SECONDS)
    headers = {name: posted.headers.get(name) for name in ("api-key", "x-team", "content-encoding")}
    assert headers == {"api-key": "the key", "x-team": "pictures", "content-encoding": "gzip"}
    assert len(posted.spans) == SPANS


@pytest.mark.parametrize("path", ["", "/", "/v1/traces", "/v1/traces/"])
def test_an_endpoint_is_a_collectors_address_or_what_it_is_posted_to(
    collector: Collector, begin: Callable[..., Traces], path: str
) -> None:
    begin(collector.url + path).add(finished())
    assert taken(collector) == {"some"}


def test_resources_are_told_by_the_environment_too_but_a_worker_is_not_where_its_router_is(
    collector: Collector, begin: Callable[..., Traces], monkeypatch: pytest.MonkeyPatch
) -> None:
    told_here = "deployment.environment.name=lab,service.namespace=pictures,host.name=node-1,service.name=any"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", told_here)
    begin(collector.url).add(finished())
    resources = [told(one.resource.attributes) for one in collector.taken.get(timeout=SECONDS).body.resource_spans]
    router, worker = sorted(resources, key=lambda attributes: attributes["service.name"], reverse=True)
    assert (router["service.name"], worker["service.name"]) == ("triptych-router", "triptych-prefill")
    assert (router.get("host.name"), worker.get("host.name")) == ("node-1", None)
    assert worker["service.instance.id"] == "prefill-0" != router.get("service.instance.id")
    for resource in resources:
        assert resource["deployment.environment.name"] == "lab"
        assert resource["service.namespace"] == "pictures"


def test_what_a_busy_collector_refuses_is_sent_again(collector: Collector, begin: Callable[..., Traces]) -> None:
    collector.answers += [503, 429]
    traces = begin(collector.url)
    traces.add(finished())
    assert taken(collector) == {"some"}
    traces.close()
    assert traces.num_dropped == 0


def test_what_a_collector_refuses_for_good_is_counted_and_said_once(
    collector: Collector, begin: Callable[..., Traces], caplog: pytest.LogCaptureFixture
) -> None:
    collector.answers += [401, 401]
    dropped: list[int] = []
    traces = begin(collector.url, dropped=dropped.append)
    for _ in range(2):
        traces.add(finished("refused"))
        assert collector.has_come.acquire(timeout=SECONDS)
    traces.add(finished("good"))
    assert taken(collector) == {"good"}
    traces.close()
    assert sum(dropped) == traces.num_dropped == 2 * SPANS
    assert ["401" in record.getMessage() for record in caplog.records if record.name == EXPORTER] == [True]
    assert "the collector takes spans again" in caplog.messages


def test_what_finds_no_collector_is_counted(begin: Callable[..., Traces], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    traces = begin(NOBODY)
    traces.add(finished())
    traces.close()
    assert traces.num_dropped == SPANS


def test_what_finds_no_room_is_counted_and_the_rest_is_sent(collector: Collector) -> None:
    traces = Traces(ObserveSettings(otlp_endpoint=collector.url), "some-model", most_queued=2)
    for name in ("first", "second", "third"):
        traces.add(finished(name))
    assert traces.num_dropped == SPANS
    traces.start()
    traces.close()
    assert taken(collector) == {"first", "second"}
    assert traces.num_dropped == SPANS


def test_closing_sends_all_that_is_queued(collector: Collector, begin: Callable[..., Traces]) -> None:
    traces, names = begin(collector.url), {f"request-{number}" for number in range(100)}
    for name in names:
        traces.add(finished(name))
    traces.close()
    found: set[str] = set()
    while not collector.taken.empty():
        found |= taken(collector)
    assert found == names
    assert traces.num_dropped == 0


@pytest.mark.parametrize("is_mute", [True, False])
def test_closing_waits_so_long_and_counts_what_is_left(collector: Collector, is_mute: bool) -> None:
    """For a collector that does not answer, or wants to be asked again later."""
    collector.answers, collector.retry_after = [503] * 6, "5"
    if is_mute:
        collector.hold()
    dropped: list[int] = []
    settings = ObserveSettings(otlp_endpoint=collector.url)
    traces = Traces(settings, "some-model", stop_seconds=0.1, dropped=dropped.append)
    traces.start()
    traces.add(finished())
    assert collector.has_come.acquire(timeout=SECONDS)
    traces.add(finished())
    traces.close()
    assert traces.num_dropped == 2 * SPANS
    collector.go_on()
    for thread in threading.enumerate():
        if thread.name == "traces":
            thread.join(SECONDS)
            assert not thread.is_alive()
    assert sum(dropped) == 2 * SPANS


def test_a_request_that_cannot_be_told_does_not_keep_others_from_being_told(
    collector: Collector, begin: Callable[..., Traces], caplog: pytest.LogCaptureFixture
) -> None:
    lost = threading.Semaphore(0)
    traces = begin(collector.url, dropped=lambda num_spans: lost.release())
    broken = finished()
    broken.trace = replace(new_trace(), trace="no number")
    traces.add(broken)
    assert lost.acquire(timeout=SECONDS)
    traces.add(finished("good"))
    assert taken(collector) == {"good"}
    assert [record.levelname for record in caplog.records] == [logging.getLevelName(logging.ERROR)]
