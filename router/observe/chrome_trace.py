"""A timeline as Chrome's trace events in JSON, which Perfetto and chrome://tracing open.

Router, encoders, prefill and decode workers are processes. Each has a track for the request and one for each item; the
router has one for each call, and one for the way to the first token. Arrows lead from calls to what they brought about,
from an item's encode to where its rows are read, and from prefill to decode.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from triptych.router.observe.critical_path import critical_path
from triptych.router.observe.recent import Entry
from triptych.router.observe.timeline import Span
from triptych.stages import TIMED_STAGES, Tier

_TIERS: Mapping[str, Tier] = {stage.name: stage.tier for stage in TIMED_STAGES}
_ORDER = tuple(Tier)
_REQUEST, _ITEMS, _PATH, _CALLS = 0, 1, 1001, 1002  # tracks; items and calls go on from there
_TOKENS = 1000
_ON_TOKENS = frozenset({"first_decode", "decode"})  # the clock of the router's; beside what a worker told by its own

Event = dict[str, Any]


def chrome_trace(entry: Entry) -> Mapping[str, Any]:
    """The JSON document; times are microseconds since 1970, as the router's clock has them."""
    return {"displayTimeUnit": "ms", "traceEvents": [*_Trace(entry).events()], "otherData": {"request_id": entry.id}}


class _Trace:
    def __init__(self, entry: Entry) -> None:
        self._timeline = entry.timeline
        self._origin = entry.started
        tiers = {(Tier.ROUTER, "")}
        tiers |= {(_TIERS[span.stage], span.worker) for span in self._timeline.spans if span.worker}
        tiers |= {(Tier(call.role), call.worker) for call in self._timeline.calls}
        ordered = sorted(tiers, key=lambda tier: (_ORDER.index(tier[0]), tier[1]))
        self._pids = {tier: number for number, tier in enumerate(ordered, start=1)}
        self._tracks: dict[tuple[int, int], str] = {}
        self._num_flows = 0

    def events(self) -> Iterator[Event]:
        timeline = self._timeline
        for span in timeline.spans:
            yield self._slice(span.stage, *self._place(span), span.begin, span.end, _told(span))
        for part in critical_path(timeline):
            track = self._track(1, _PATH, "the way to the first token")
            yield self._slice(part.stage, 1, track, part.begin, part.end, {"worker": part.worker or "router"})
        for number, call in enumerate(timeline.calls):
            track = self._track(1, _CALLS + number, f"call {number + 1}: {call.role}")
            args = {"worker": call.worker, "off_by_ms": round(call.off_by * 1e3, 3)}
            yield self._slice(f"{call.role} call", 1, track, call.begin, call.end, args)
            brought = [span for span in self._of(Tier(call.role), call.worker) if call.begin <= span.begin <= call.end]
            if brought:
                first = min(brought, key=lambda span: span.begin)
                yield from self._flow("call", (1, track), call.begin, self._place(first), first.begin)
        yield from self._handovers()
        yield from self._names()

    def _handovers(self) -> Iterator[Event]:
        spans = self._timeline.spans
        encodes = {span.item: span for span in spans if span.stage == "encode"}
        for span in spans:
            source = encodes.get(span.item) if span.stage == "rows_transfer" else None
            if source is not None:
                yield from self._flow("rows", self._place(source), source.end, self._place(span), span.begin)
        computed = [span for span in spans if span.stage == "prefill"]
        landed = [span for span in spans if span.stage == "handover"]
        if computed and landed:
            yield from self._flow(
                "kv", self._place(computed[-1]), computed[-1].end, self._place(landed[-1]), landed[-1].begin
            )

    def _of(self, tier: Tier, worker: str) -> Sequence[Span]:
        return [span for span in self._timeline.spans if span.worker == worker and _TIERS[span.stage] is tier]

    def _place(self, span: Span) -> tuple[int, int]:
        """Process and track."""
        tier = _TIERS[span.stage] if span.worker else Tier.ROUTER
        pid = self._pids[tier, span.worker]
        if span.item >= 0:
            return pid, self._track(pid, _ITEMS + span.item, f"image {span.item}")
        if span.stage in _ON_TOKENS:
            return pid, self._track(pid, _TOKENS, "tokens")
        return pid, self._track(pid, _REQUEST, "request")

    def _track(self, pid: int, tid: int, name: str) -> int:
        self._tracks[pid, tid] = name
        return tid

    def _slice(self, name: str, pid: int, tid: int, begin: float, end: float, args: Mapping[str, Any]) -> Event:
        event = {"ph": "X", "name": name, "cat": "stage", "pid": pid, "tid": tid, "ts": self._at(begin)}
        return {**event, "dur": round(max(0.0, end - begin) * 1e6, 3), "args": args}

    def _flow(
        self, name: str, source: tuple[int, int], begin: float, target: tuple[int, int], end: float
    ) -> Iterator[Event]:
        self._num_flows += 1
        for phase, (pid, tid), at in (("s", source, begin), ("f", target, max(begin, end))):
            event = {"ph": phase, "name": name, "cat": "flow", "id": self._num_flows, "pid": pid, "tid": tid}
            yield {**event, "ts": self._at(at), **({"bp": "e"} if phase == "f" else {})}

    def _names(self) -> Iterator[Event]:
        for (tier, worker), pid in self._pids.items():
            name = f"{tier} {worker}".strip()
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        for (pid, tid), name in self._tracks.items():
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}

    def _at(self, seconds: float) -> float:
        return round((self._origin + seconds) * 1e6, 3)


def _told(span: Span) -> Mapping[str, Any]:
    return {"off_by_ms": round(span.off_by * 1e3, 3)} if span.worker else {}
