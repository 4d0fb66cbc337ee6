"""Finished requests as spans of OpenTelemetry, and their way to a collector: the one module that loads its packages.

One span for the request and one for each stage and call of the router; below each call those of the worker's stages, of
the worker's own resource. Attributes are named as the semantic conventions for GenAI have it, where they have a name.
Nothing of what was asked or answered is among them, nor URLs or keys.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from operator import itemgetter

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from triptych.router.observe.recent import Entry
from triptych.router.observe.timeline import Call, Span
from triptych.router.observe.trace_context import TraceContext
from triptych.stages import TIMED_STAGES, Tier

logger = logging.getLogger(__name__)

_VERSION = version("triptych")
_TIERS: Mapping[str, Tier] = {stage.name: stage.tier for stage in TIMED_STAGES}
_OPERATIONS: Mapping[str, str] = {"/v1/completions": "text_completion"}
_SCOPE = InstrumentationScope("triptych.router", _VERSION)
_SAMPLED, _UNSET = TraceFlags(TraceFlags.SAMPLED), Status()
_NAMESPACE = Resource({"service.namespace": "triptych"})
_IDS = RandomIdGenerator()
_MOST_RESOURCES = 1024
# What the environment says of the place where the router is: its workers may be elsewhere.
_OF_A_PLACE = ("host.", "os.", "process.", "container.", "k8s.node.", "k8s.pod.", "k8s.container.")

Attributes = dict[str, str | int | float]


class OtlpSender:
    """Sends from the one thread that calls `send`; how is said by OTEL_EXPORTER_OTLP_* in the environment."""

    def __init__(self, url: str, model: str) -> None:
        """url: that spans are posted to; model: as it is served"""
        self._model = model
        self._exporter = OTLPSpanExporter(url)
        self._resource_of = lru_cache(_MOST_RESOURCES)(resource_of)
        self._is_failing = False
        self._thread = 0
        self._log = logging.getLogger(OTLPSpanExporter.__module__)
        self._log.addFilter(self._is_news)

    def send(self, requests: Iterable[tuple[Entry, TraceContext]]) -> bool:
        """Whether the collector has taken them; what may pass is tried again, until the time for it is over."""
        self._thread = threading.get_ident()
        spans = [span for entry, context in requests for span in self._spans_of(entry, context)]
        is_taken = self._exporter.export(spans) is SpanExportResult.SUCCESS
        if is_taken and self._is_failing:
            logger.warning("the collector takes spans again")
        self._is_failing = not is_taken
        return is_taken

    def close(self) -> None:
        """From any thread. Nothing is tried again from now on."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        self._log.removeFilter(self._is_news)

    def _spans_of(self, entry: Entry, context: TraceContext) -> list[ReadableSpan]:
        return _Spans(entry, context, self._model, self._resource_of).all()

    def _is_news(self, record: logging.LogRecord) -> bool:
        """The exporter says each time what is wrong; while a collector is away that is once enough."""
        return not self._is_failing or record.thread != self._thread


def resource_of(tier: Tier, worker: str) -> Resource:
    """Whose spans they are. OTEL_RESOURCE_ATTRIBUTES may add to that, and change the namespace."""
    own = {"service.name": f"triptych-{tier}", "service.version": _VERSION}
    if not worker:
        return _NAMESPACE.merge(Resource.create(own))
    told = _NAMESPACE.merge(Resource.create(own | {"service.instance.id": worker})).attributes
    return Resource({name: value for name, value in told.items() if not name.startswith(_OF_A_PLACE)})


class _Spans:
    """Of one request."""

    def __init__(
        self, entry: Entry, context: TraceContext, model: str, resource_of: Callable[[Tier, str], Resource]
    ) -> None:
        self._entry = entry
        self._model = model
        self._resource_of = resource_of
        self._trace = int(context.trace, 16)
        self._above = self._context(int(context.parent, 16), is_remote=True) if context.parent else None
        self._request = self._context(int(context.span, 16))

    def all(self) -> list[ReadableSpan]:
        timeline = self._entry.timeline
        calls = [(call, self._new_context()) for call in timeline.calls]
        spans = [self._of_request()]
        spans += [self._of_call(call, context) for call, context in calls]
        spans += [self._of_stage(span, calls) for span in timeline.spans]
        return spans

    def _of_request(self) -> ReadableSpan:
        entry = self._entry
        operation = _OPERATIONS.get(entry.endpoint, "chat")
        told: Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "triptych",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
            "gen_ai.usage.input_tokens": entry.prompt_tokens,
            "gen_ai.usage.output_tokens": entry.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": entry.cached_tokens,
            "http.request.method": "POST",
            "http.route": entry.endpoint,
            "triptych.request.id": entry.id,
            "triptych.images": entry.images,
            "triptych.retries": len(entry.timeline.retried),
        }
        if entry.timeline.first_token is not None:
            told["triptych.time_to_first_token"] = entry.timeline.first_token
        status = _UNSET
        if entry.error:
            told["error.type"] = entry.error
            status = Status(StatusCode.ERROR, entry.error)
        return self._span(
            *(f"{operation} {self._model}", self._request, self._above, 0.0, entry.seconds, told),
            kind=SpanKind.SERVER,
            status=status,
        )

    def _of_call(self, call: Call, context: SpanContext) -> ReadableSpan:
        told: Attributes = {"triptych.worker.id": call.worker, "rpc.system": "grpc"}
        name = f"{call.role} call"
        return self._span(name, context, self._request, call.begin, call.end, told, kind=SpanKind.CLIENT)

    def _of_stage(self, span: Span, calls: Sequence[tuple[Call, SpanContext]]) -> ReadableSpan:
        tier, parent = Tier.ROUTER, self._request
        told: Attributes = {"triptych.item.index": span.item} if span.item >= 0 else {}
        if span.worker:
            tier, parent = _TIERS[span.stage], self._parent(span, calls)
            told["triptych.clock.off_by_seconds"] = span.off_by
        return self._span(
            *(span.stage, self._new_context(), parent, span.begin, span.end, told), tier=tier, worker=span.worker
        )

    def _parent(self, span: Span, calls: Sequence[tuple[Call, SpanContext]]) -> SpanContext:
        """The narrowest call to its worker that it lies in; the request, for what the router itself has seen."""
        around = [
            (call.end - call.begin, context)
            for call, context in calls
            if call.worker == span.worker
            and call.begin <= span.begin + span.off_by
            and span.end <= call.end + span.off_by
        ]
        return min(around, key=itemgetter(0), default=(0.0, self._request))[1]

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        begin: float,
        end: float,
        told: Attributes,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        status: Status = _UNSET,
        tier: Tier = Tier.ROUTER,
        worker: str = "",
    ) -> ReadableSpan:
        return ReadableSpan(
            *(name, context, parent, self._resource_of(tier, worker), told),
            kind=kind,
            status=status,
            start_time=self._at(begin),
            end_time=self._at(max(begin, end)),
            instrumentation_scope=_SCOPE,
        )

    def _new_context(self) -> SpanContext:
        return self._context(_IDS.generate_span_id())

    def _context(self, span: int, is_remote: bool = False) -> SpanContext:
        return SpanContext(self._trace, span, is_remote, _SAMPLED)

    def _at(self, seconds: float) -> int:
        """In nanoseconds since 1970."""
        return round((self._entry.started + seconds) * 1e9)
