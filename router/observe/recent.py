"""The latest requests of a router, and where their time went: for who asked them, for operators, for the live page."""

import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from triptych.errors import TimelineExpired, TimelineNotFound
from triptych.router.api.usage import Usage
from triptych.router.observe.critical_path import critical_path, stage_seconds
from triptych.router.observe.timeline import Timeline
from triptych.router.observe.trace_context import TraceContext
from triptych.router.pipeline.request import Request

_ENTRY_BYTES = 1200  # about what one takes without its spans
_SPAN_BYTES = 220
_GONE_REMEMBERED = 4096  # ids


@dataclass(slots=True, eq=False)
class Entry:
    """One request, on its way or over. It holds nothing of what was asked or answered.

    id:      as the client reads it in x-request-id
    request: while it is on its way
    """

    id: str
    tenant: str
    endpoint: str
    timeline: Timeline
    request: Request | None
    images: int
    media_bytes: int
    prompt_tokens: int
    image_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0
    cached_items: int = 0  # images whose rows were there already, or being made for another request
    seconds: float = 0.0  # until it was over
    state: str = ""  # once it is over: finished, failed, cancelled
    error: str = ""  # the class of what it failed with
    trace: TraceContext | None = None
    started: float = field(default_factory=time.time)  # in seconds since 1970
    num_bytes: int = 0  # that it takes, about, once it is over

    def summary(self) -> dict[str, Any]:
        """JSON values; `stages` adds up to `first_token_seconds`, and its way to the client where it was streamed."""
        timeline, request = self.timeline, self.request
        return {
            "id": self.id,
            "endpoint": self.endpoint,
            "state": self.state or (str(request.stage) if request is not None else ""),
            "error": self.error or None,
            "started": self.started,
            "seconds": self.seconds if self.state else timeline.since_start(),
            "first_token_seconds": timeline.first_token,
            "stages": dict(stage_seconds(critical_path(timeline))),
            "images": self.images,
            "media_bytes": self.media_bytes,
            "prompt_tokens": self.prompt_tokens,
            "image_tokens": self.image_tokens,
            "cached_tokens": self.cached_tokens,
            "cached_items": self.cached_items,
            "completion_tokens": self.completion_tokens
            if request is None
            else sum(len(ids) for ids in request.generated),
            "workers": [placed._asdict() for placed in timeline.placed],
            "retries": [retried._asdict() for retried in timeline.retried],
        }


class RecentRequests:
    """Bounded by their number and by what they take, whichever is reached first. Belongs to the event loop."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._running: dict[Request, Entry] = {}
        self._over: OrderedDict[tuple[str, str], Entry] = OrderedDict()  # by tenant and id, the latest last
        self._gone: deque[tuple[str, str]] = deque(maxlen=_GONE_REMEMBERED)

    def begin(self, request: Request, id: str, tenant: str, endpoint: str) -> Entry:
        prepared = request.prepared
        entry = Entry(
            *(id, tenant, endpoint, request.timeline, request),
            images=len(prepared.layout.items),
            media_bytes=sum(len(media.data) for media in prepared.media),
            prompt_tokens=request.prompt_tokens,
            image_tokens=request.image_tokens,
            started=time.time() - request.timeline.since_start(),
        )
        self._running[request] = entry
        return entry

    def end(self, request: Request, usage: Usage, error: BaseException | None) -> Entry:
        """It is over; from now on it may be forgotten."""
        entry = self._running.pop(request)
        entry.request = None
        entry.seconds = entry.timeline.since_start()
        entry.state, entry.error = str(request.stage), type(error).__name__ if error is not None else ""
        entry.completion_tokens, entry.cached_tokens = usage.completion_tokens, usage.cached_tokens
        entry.cached_items = request.cached_items
        entry.num_bytes = _num_bytes(entry.timeline)
        key = entry.tenant, entry.id
        self._forget(key)
        self._over[key] = entry
        self._num_bytes += entry.num_bytes
        while self._over and (len(self._over) > self._most or self._num_bytes > self._most_bytes):
            oldest = next(iter(self._over))
            self._forget(oldest)
            self._gone.append(oldest)
        return entry

    def find(self, id: str, tenant: str, of_all: bool) -> Entry:
        """The latest request of this id. Raises TimelineNotFound, TimelineExpired.

        of_all: whoever asked it; else this tenant
        """
        for entry in self._running.values():
            if entry.id == id and (of_all or entry.tenant == tenant):
                return entry
        if not of_all:
            found = self._over.get((tenant, id))
        else:
            found = next((entry for entry in reversed(self._over.values()) if entry.id == id), None)
        if found is not None:
            return found
        if any(gone[1] == id and (of_all or gone[0] == tenant) for gone in self._gone):
            raise TimelineExpired(f"the timeline of request {id!r} is no longer kept")
        raise TimelineNotFound(f"there is no timeline of a request {id!r}")

    def entries(self) -> Sequence[Entry]:
        """Of requests that are over, the oldest first."""
        return [*self._over.values()]

    def recent(self, count: int = 50) -> Sequence[Mapping[str, Any]]:
        """The requests on their way and the latest that are over, as `Entry.summary` tells them; the newest first."""
        entries = [*self._running.values()]
        for entry in reversed(self._over.values()):
            if len(entries) >= count:
                break
            entries.append(entry)
        return [entry.summary() for entry in sorted(entries, key=lambda entry: -entry.started)[:count]]

    def _forget(self, key: tuple[str, str]) -> None:
        entry = self._over.pop(key, None)
        if entry is not None:
            self._num_bytes -= entry.num_bytes


def _num_bytes(timeline: Timeline) -> int:
    return _ENTRY_BYTES + _SPAN_BYTES * (len(timeline.spans) + len(timeline.calls) + len(timeline.placed))
