"""What a request waited for at each moment until its first token: stages that add up to that time, each named once.

Stages go on side by side: a prompt's text is computed while its images are decoded. So the way is walked from its end:
from the first token to the last step of prefill, from there to the rows that came last before it began, from those to
their item's encode, and so on to the arrival. What lies between one of them and the next is named by what the later one
stood in line for, at its own worker; the rest is what passed on the wire, or in the router.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from triptych.router.observe.timeline import Span, Timeline
from triptych.stages import TIMED_STAGES, Tier

# What one stage may have had to wait for, beside the stages of all; those that belong to an item: of the same one.
_OF_ALL = frozenset({stage.name for stage in TIMED_STAGES if stage.tier is Tier.ROUTER} | {"reserve", "prefill_queue"})
_BEFORE: Mapping[str, frozenset[str]] = {
    "": frozenset({"prefill", "rows_transfer", "encode", "preprocess", "encode_queue"}),
    "prefill": frozenset({"prefill", "rows_transfer"}),
    "rows_transfer": frozenset({"encode", "preprocess", "encode_queue"}),
    "encode": frozenset({"preprocess"}),
    "encode_queue": frozenset({"encode", "preprocess"}),  # behind the encode: until the answer is made
}
_LINES = frozenset({"prefill_wait", "prefill_queue", "encode_queue"})
_LEAST = 1e-9


class Part(NamedTuple):
    """A piece of the way; seconds since the request came."""

    stage: str
    begin: float
    end: float
    worker: str = ""


def critical_path(timeline: Timeline) -> Sequence[Part]:
    """In order and without gaps, from the arrival to the first token, and its way to the client where that is known.

    Empty as long as there is no token.
    """
    if timeline.first_token is None:
        return ()
    until, parts = timeline.first_token, list[Part]()
    if timeline.responded is not None:
        parts.append(Part("respond", until, timeline.responded))
    spans = timeline.spans
    later, left = Span("", until, until), sorted(spans, key=_end, reverse=True)[::-1]
    lines = sorted((span for span in spans if span.stage in _LINES), key=_begin)
    off_by = 2 * max((span.off_by for span in spans), default=0.0) + _LEAST
    while until > _LEAST:
        # A long prompt has many hundred steps: what is too late now is so for whatever comes before, too.
        while left and left[-1].end > until + off_by:
            left.pop()
        while lines and lines[-1].begin >= until:
            lines.pop()
        place = next((place for place in _backwards(left) if _leads_to(later, left[place], until)), -1)
        before = left.pop(place) if place >= 0 else None  # one that took no time would be found again
        begin = min(max(0.0, before.end), until) if before is not None else 0.0
        parts += reversed(_between(begin, until, before, later, lines))
        if before is None:
            break
        if before.begin < before.end:
            parts.append(Part(before.stage, max(0.0, before.begin), begin, before.worker))
        until, later = max(0.0, before.begin), before
    return parts[::-1]


def path_behind(timeline: Timeline, begin: float, end: float, rest: str) -> Sequence[Part]:
    """What came after that moment: in order and without gaps, each stage from where the one before it ended.

    For the time behind the first token, where stages seldom go on side by side, and for requests that never had one.
    rest: what the time behind the last of them is called
    """
    parts, at, is_inside = list[Part](), begin, True
    spans = (_no_earlier(span, begin) for span in timeline.spans if span.stage != "respond")
    for span in sorted(spans, key=_begin):
        low, high = max(at, span.begin), min(span.end, end)
        if high - low <= _LEAST:
            continue
        if low - at > _LEAST:
            parts.append(Part("router" if is_inside and not span.worker else "wire", at, low))
        parts.append(Part(span.stage, low, high, span.worker))
        at, is_inside = high, not span.worker
    if end - at > _LEAST:
        parts.append(Part(rest, at, end))
    return parts


def stage_seconds(parts: Iterable[Part]) -> Mapping[str, float]:
    """By stage, in their order; they add up to what the parts are together."""
    seconds: dict[str, float] = {}
    for part in parts:
        seconds[part.stage] = seconds.get(part.stage, 0.0) + part.end - part.begin
    return seconds


def server_timing(timeline: Timeline) -> str:
    """The value of a Server-Timing header, in milliseconds.

    First the stages until the first token and their sum, `first_token`; behind it what came later.
    """
    parts = critical_path(timeline)
    entries = [*stage_seconds(parts).items()]
    if parts:
        entries.append(("first_token", parts[-1].end))
    entries += [(stage, seconds) for stage, seconds in timeline.seconds.items() if stage in _LATER or not parts]
    return ", ".join(f"{stage};dur={seconds * 1000:.3f}" for stage, seconds in entries)


_LATER = frozenset({"handover", "first_decode", "decode"})


def _leads_to(later: Span, span: Span, until: float) -> bool:
    """Whether `later` may have begun because of `span`; clocks of two workers may contradict what must have been so."""
    leeway = _LEAST if span.worker == later.worker else span.off_by + later.off_by + _LEAST
    if span.end > until + leeway or span.begin > until:
        return False
    if span.stage in _OF_ALL:
        return span.stage != "respond"
    if span.stage not in _BEFORE.get(later.stage, ()):
        return False
    return later.item < 0 or span.item == later.item


def _between(begin: float, end: float, before: Span | None, later: Span, lines: Iterable[Span]) -> list[Part]:
    """What lies between two stages: lines that the later one's worker had it stand in, and the way there.

    lines: of all workers, in the order in which they began
    """
    if end - begin <= _LEAST:
        return []
    rest = "router" if not later.worker and later.stage and (before is None or not before.worker) else "wire"
    parts: list[Part] = []
    at = begin
    if later.worker and later.stage != "rows_transfer":  # whose rows were on their way, whatever stood in line
        for line in [line for line in lines if line.end > at and line.worker == later.worker and line is not later]:
            low, high = max(at, line.begin), min(end, line.end)
            if high - low > _LEAST:
                parts += [Part(rest, at, low)] if low - at > _LEAST else []
                parts.append(Part(line.stage, low, high, line.worker))
                at = high
    return [*parts, Part(rest, at, end)] if end - at > _LEAST else parts


def _no_earlier(span: Span, first: float) -> Span:
    """The span; one that needs the first token where it can have been, if its worker's clock has it ahead of that."""
    if span.stage not in _LATER or span.begin >= first:
        return span
    late = min(span.off_by, first - span.begin)
    return span._replace(begin=span.begin + late, end=span.end + late)


def _backwards(spans: Sequence[Span]) -> range:
    return range(len(spans) - 1, -1, -1)


def _begin(span: Span) -> float:
    return span.begin


def _end(span: Span) -> float:
    return span.end
