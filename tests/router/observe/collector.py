"""A collector of OpenTelemetry on loopback: what was posted to it over OTLP, as its protocol buffers have it."""

import gzip
import queue
import threading
from dataclasses import dataclass
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.web import QuietHandler, WebServer

SECONDS = 10.0


@dataclass(frozen=True)
class Posted:
    headers: dict[str, str]
    body: ExportTraceServiceRequest

    @property
    def spans(self) -> list[Span]:
        return [span for one in self.body.resource_spans for scope in one.scope_spans for span in scope.spans]


class Collector:
    """A context. It takes what comes, unless `answers` says otherwise."""

    def __init__(self) -> None:
        self.taken: queue.Queue[Posted] = queue.Queue()
        self.answers: list[int] = []  # statuses of the next answers; then 200
        self.retry_after = "0"  # seconds, with those
        self.has_come = threading.Semaphore(0)  # once for each post, whatever its answer
        self._goes_on = threading.Event()
        self._goes_on.set()
        collector = self

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                collector.has_come.release()
                collector._goes_on.wait(SECONDS)
                status = collector.answers.pop(0) if collector.answers else 200
                if status == 200 and self.path == "/v1/traces":
                    collector.taken.put(read({name.lower(): value for name, value in self.headers.items()}, data))
                self.answer(
                    status, {"content-type": "application/x-protobuf", "retry-after": collector.retry_after}, b""
                )

        self._server = WebServer(Handler)
        self.url = self._server.url

    def hold(self) -> None:
        """Until `go_on` nothing is answered."""
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()

    def spans(self) -> list[tuple[str, Span]]:
        """Of the next post: each with the name of its service."""
        posted = self.taken.get(timeout=SECONDS)
        return [
            (told(one.resource.attributes)["service.name"], span)
            for one in posted.body.resource_spans
            for scope in one.scope_spans
            for span in scope.spans
        ]

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on()
        self._server.__exit__()


def read(headers: dict[str, str], data: bytes) -> Posted:
    assert headers["content-type"] == "application/x-protobuf"
    body = gzip.decompress(data) if headers.get("content-encoding") == "gzip" else data
    return Posted(headers, ExportTraceServiceRequest.FromString(body))


def told(attributes: Any) -> dict[str, Any]:
    pairs: list[KeyValue] = list(attributes)
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}
