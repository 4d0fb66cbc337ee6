"""Requests as OpenTelemetry spans, in OTLP's JSON form.

One span for the request and one for each stage and call of the router; below each call those of the worker's stages, of
the worker's own resource. Attributes are named as the semantic conventions for GenAI have it, where they have a name.
Nothing of what was asked or answered is among them, nor URLs or keys.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from triptych.router.observe.recent import Entry
from triptych.router.observe.timeline import Call, Span
from triptych.router.observe.trace_context import TraceContext, new_span_id
from triptych.stages import TIMED_STAGES, Tier

_TIERS: Mapping[str, Tier] = {stage.name: stage.tier for stage in TIMED_STAGES}
_INTERNAL, _SERVER, _CLIENT = 1, 2, 3  # span kinds
_ERROR = 2  # status
_SCOPE = {"name": "triptych.router"}
_OPERATIONS: Mapping[str, str] = {"/v1/completions": "text_completion"}

Resource = tuple[Tier, str]  # and the worker's id
JSON = dict[str, Any]


def export_request(entries: Iterable[tuple[Entry, TraceContext]], model: str, version: str) -> JSON:
    """The body of one POST to /v1/traces; model: as it is served"""
    spans: dict[Resource, list[JSON]] = {}
    for entry, context in entries:
        for resource, span in _Spans(entry, context, model).all():
            spans.setdefault(resource, []).append(span)
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(_resource(*resource, version))},
                "scopeSpans": [{"scope": _SCOPE, "spans": of_resource}],
            }
            for resource, of_resource in spans.items()
        ]
    }


def num_spans(entry: Entry) -> int:
    return 1 + len(entry.timeline.spans) + len(entry.timeline.calls)


class _Spans:
    """Of one request."""

    def __init__(self, entry: Entry, context: TraceContext, model: str) -> None:
        self._entry = entry
        self._context = context
        self._model = model

    def all(self) -> list[tuple[Resource, JSON]]:
        entry, router = self._entry, (Tier.ROUTER, "")
        calls = [(call, new_span_id()) for call in entry.timeline.calls]
        spans: list[tuple[Resource, JSON]] = [(router, self._of_request())]
        spans += [(router, self._of_call(call, id)) for call, id in calls]
        for span in entry.timeline.spans:
            tier = _TIERS[span.stage] if span.worker else Tier.ROUTER
            told: dict[str, Any] = {"triptych.item.index": span.item} if span.item >= 0 else {}
            if span.worker:
                told["triptych.clock.off_by_seconds"] = span.off_by
            made = self._span(span.stage, new_span_id(), self._parent(span, calls), span.begin, span.end, told)
            spans.append(((tier, span.worker), made))
        return spans

    def _of_request(self) -> JSON:
        entry = self._entry
        operation = _OPERATIONS.get(entry.endpoint, "chat")
        told = {
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
        span = self._span(
            f"{operation} {self._model}", self._context.span, self._context.parent, 0.0, entry.seconds, told
        )
        span["kind"] = _SERVER
        if entry.error:
            span["attributes"] += _attributes({"error.type": entry.error})
            span["status"] = {"code": _ERROR, "message": entry.error}
        return span

    def _of_call(self, call: Call, id: str) -> JSON:
        told = {"triptych.worker.id": call.worker, "rpc.system": "grpc"}
        span = self._span(f"{call.role} call", id, self._context.span, call.begin, call.end, told)
        span["kind"] = _CLIENT
        return span

    def _parent(self, span: Span, calls: Sequence[tuple[Call, str]]) -> str:
        """The narrowest call to its worker that it lies in; the request, for what the router itself has seen."""
        around = [
            (call.end - call.begin, id)
            for call, id in calls
            if call.worker == span.worker
            and call.begin <= span.begin + span.off_by
            and span.end <= call.end + span.off_by
        ]
        return min(around, default=(0.0, self._context.span))[1]

    def _span(self, name: str, id: str, parent: str, begin: float, end: float, told: Mapping[str, Any]) -> JSON:
        return {
            "traceId": self._context.trace,
            "spanId": id,
            "parentSpanId": parent,
            "name": name,
            "kind": _INTERNAL,
            "startTimeUnixNano": self._at(begin),
            "endTimeUnixNano": self._at(max(begin, end)),
            "attributes": _attributes(told),
        }

    def _at(self, seconds: float) -> str:
        return str(round((self._entry.started + seconds) * 1e9))


def _resource(tier: Tier, worker: str, version: str) -> Mapping[str, Any]:
    told = {"service.namespace": "triptych", "service.name": f"triptych-{tier}", "service.version": version}
    return told | {"service.instance.id": worker} if worker else told


def _attributes(told: Mapping[str, Any]) -> list[JSON]:
    return [{"key": name, "value": _value(value)} for name, value in told.items()]


def _value(value: Any) -> JSON:
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}
