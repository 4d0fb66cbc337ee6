"""A request as the page is told of it: where it is, and in the end where its time went. Never what is asked or said."""

from typing import Any

from triptych.router.observe.critical_path import critical_path, path_behind, stage_seconds
from triptych.router.observe.recent import Entry
from triptych.stages import Stage

# Where a request is while it runs, as far as the router knows: workers tell of finer stages only once they have ended.
_SHOWN_AS = {
    Stage.LAID_OUT: "wait",
    Stage.RESERVING: "wait",
    Stage.ENCODING: "encode",
    Stage.PREFILLING: "prefill",
    Stage.HANDING_OVER: "handover",
    Stage.DECODING: "decode",
}


def running_row(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.own_id.hex(),
        "stage": _SHOWN_AS.get(entry.request.stage, "decode") if entry.request is not None else "decode",
        "images": entry.images,
        "tokens": entry.num_generated,
        "workers": entry.asked,
    }


def ended_row(entry: Entry) -> dict[str, Any]:
    first = entry.timeline.first_token
    return {
        "id": entry.own_id.hex(),
        "request_id": entry.id,  # as its client and the log have it
        "at": round(entry.started + entry.seconds, 3),
        "outcome": entry.state,
        "error": entry.error or None,
        "images": entry.images,
        "prompt_tokens": entry.prompt_tokens,
        "cached_tokens": entry.cached_tokens,
        "tokens": entry.generated_tokens,
        "seconds": round(entry.seconds, 6),
        "first_token": None if first is None else round(first, 6),
        "per_token": _per_token(entry),
        "stages": [[stage, round(seconds, 6)] for stage, seconds in stages(entry)],
        "workers": entry.asked,
    }


def stages(entry: Entry) -> list[tuple[str, float]]:
    """What it waited for at each moment, in order; the seconds add up to what it took.

    Until the first token each stage is named once, and behind it once more where the request was tried again.
    """
    timeline, ended = entry.timeline, entry.seconds
    until_first = [part for part in critical_path(timeline) if part.stage != "respond"]  # while D takes over
    first = timeline.first_token or 0.0
    rest = "router" if entry.state == Stage.FINISHED else "wire"  # that of a worker which told of no stage any more
    behind = path_behind(timeline, first, ended, rest)
    return [*stage_seconds(until_first).items(), *stage_seconds(behind).items()]


def _per_token(entry: Entry) -> float | None:
    """Seconds from one token of a choice to the next; None where there was but one."""
    first = entry.timeline.first_token
    ends = [span.end for span in entry.timeline.spans if span.stage == "decode"]
    steps = (entry.generated_tokens - entry.choices) / max(1, entry.choices)
    if first is None or not ends or steps < 1:
        return None
    return round((max(ends) - first) / steps, 6)
