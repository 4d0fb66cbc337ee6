"""GET /v1/requests/{id}/timeline: where the time of one of the latest requests went."""

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request

from triptych.errors import InvalidRequest
from triptych.router.observe.chrome_trace import chrome_trace
from triptych.router.observe.critical_path import critical_path
from triptych.router.observe.recent import Entry, RecentRequests
from triptych.stages import TIMED_STAGES, Tier

_TIERS = {stage.name: stage.tier for stage in TIMED_STAGES}


def timeline_body(entry: Entry) -> Mapping[str, Any]:
    """JSON values; seconds since the request came."""
    timeline = entry.timeline
    return {
        "object": "request.timeline",
        **entry.summary(),
        "path": [part._asdict() for part in critical_path(timeline)],
        "spans": [
            {"tier": str(_TIERS[span.stage] if span.worker else Tier.ROUTER), **span._asdict()}
            for span in timeline.spans
        ],
        "calls": [call._asdict() for call in timeline.calls],
    }


FORMATS: Mapping[str, Callable[[Entry], Mapping[str, Any]]] = {"json": timeline_body, "chrome": chrome_trace}


def add_timelines(app: FastAPI, recent: RecentRequests, has_keys: Callable[[], bool]) -> None:
    """Callers see their own requests; operators, and everybody where there are no keys, see all."""

    @app.get("/v1/requests/{request_id:path}/timeline", response_model=None)
    async def timeline(http: Request, request_id: str, format: str = "json") -> Mapping[str, Any]:
        """Where the time of a request went, stage by stage; format=chrome: a trace that Perfetto opens"""
        if format not in FORMATS:
            raise InvalidRequest(f"format is {format[:40]!r}, expected json or chrome", param="format")
        state = http.scope["state"]
        sees_all = bool(state.get("is_admin")) or not has_keys()
        return FORMATS[format](recent.find(request_id, state.get("tenant", ""), sees_all))
