"""GET /v1/cluster/live: the cluster as it is, as server-sent events, for whoever looks at the page.

One snapshot a second, and one within LOOK_SECONDS of each change. Each listener looks for itself, at what is there
anyway: where nobody listens nothing runs, and one that reads slowly only misses snapshots, of which none are kept.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from triptych.errors import Cancelled, PermissionDenied, TooManyViewers
from triptych.router.edge.body import unless_gone
from triptych.router.edge.gate import Gate
from triptych.router.edge.sites import OF_ADMIN_PORT
from triptych.router.fleet.link import WorkerLink
from triptych.router.observe.recent import Entry
from triptych.router.page.rows import ended_row, running_row
from triptych.router.router import Router

LIVE_PATH = "/v1/cluster/live"

LOOK_SECONDS = 0.2
LONGEST_SECONDS = 1.0  # between two snapshots
LIFE_SECONDS = 600.0  # of one answer; whoever still listens asks again, and shows a key that is still good
MOST_LISTENERS = 32
MOST_OF_OTHERS = 24  # than operators, who find a place in any crowd
MOST_OF_A_TENANT = 4
MOST_RECENT = 64  # requests that have ended, of those that the router keeps
MOST_RUNNING = 200  # that are shown; more are counted

# What the page draws of a worker's gauges.
_GAUGES = (
    *("encoder_queued_items", "encoder_queued_tokens", "encoder_arena_bytes", "encoder_arena_free_bytes"),
    *("encoder_cached_items", "encoder_cache_hits_total", "encoder_cache_joins_total", "encoder_items_encoded_total"),
    *("prefill_requests", "prefill_queued_tokens", "prefix_lookup_tokens_total", "prefix_hit_tokens_total"),
    *("decode_sequences", "decode_reservations_queued", "preempted_sequences"),
    *("kv_blocks", "kv_free_blocks", "kv_cached_blocks", "rss_bytes", "device_bytes"),
)


@dataclass(frozen=True, slots=True)
class Viewer:
    """tenant: whose requests are shown beside the workers' states; None: nobody's, or all where is_operator"""

    is_operator: bool
    tenant: str | None = None


class LiveFeed:
    """Belongs to the router's event loop."""

    def __init__(self, router: Router, gate: Gate) -> None:
        self._router = router
        self._gate = gate
        self._recent = router.recent
        self._row = lru_cache(MOST_RECENT)(_row)  # once for all who listen, and only where somebody does
        self._listeners: Counter[Viewer] = Counter()
        self._ended = {False: asyncio.Event(), True: asyncio.Event()}  # by whether it is the admin port's

    def end(self, of_admin_port: bool) -> None:
        """Ends the answers of a port that is about to close: a server waits for answers that are being written."""
        self._ended[of_admin_port].set()

    def listen(self, state: Mapping[str, Any]) -> Response:
        """state: of the request's scope. Raises PermissionDenied, and TooManyViewers for one listener too many."""
        viewer = self._viewer(state)
        held = self._listeners
        others = sum(number for each, number in held.items() if not each.is_operator)
        is_full = held.total() >= MOST_LISTENERS
        if not viewer.is_operator:
            is_full = is_full or others >= MOST_OF_OTHERS
            is_full = is_full or (viewer.tenant is not None and held[viewer] >= MOST_OF_A_TENANT)
        if is_full:
            raise TooManyViewers("too many look at the cluster already; try again")
        return _LiveAnswer(self, viewer, bool(state.get(OF_ADMIN_PORT)))

    @contextmanager
    def counted(self, viewer: Viewer) -> Iterator[None]:
        self._listeners[viewer] += 1
        try:
            yield
        finally:
            self._listeners -= Counter([viewer])  # which also forgets those of whom none is left

    def _viewer(self, state: Mapping[str, Any]) -> Viewer:
        """Whoever comes by the main port is no operator where operators have a port of their own."""
        by_admin_port = bool(state.get(OF_ADMIN_PORT))
        is_theirs = by_admin_port or not self._router.settings.router.admin_port
        if not self._gate.has_keys:
            return Viewer(is_operator=is_theirs)
        if is_theirs and state["is_admin"]:
            return Viewer(is_operator=True)
        if by_admin_port:
            raise PermissionDenied("this key may not ask what operators ask")
        return Viewer(is_operator=False, tenant=state["tenant"])

    async def write(self, viewer: Viewer, of_admin_port: bool, send: Send) -> None:
        """Snapshots until the port closes, or the answer has lived long enough."""
        ending, clock = self._ended[of_admin_port], asyncio.get_running_loop().time
        patience = self._router.settings.router.stage_timeout_seconds
        before, behind, sent_at, ends_at = "", 0, -LONGEST_SECONDS, clock() + LIFE_SECONDS
        while clock() < ends_at and not ending.is_set():
            recent, behind = self._recent_of(viewer, behind), self._recent.num_ended
            told = json.dumps(self._snapshot(viewer, of_admin_port), separators=(",", ":"))
            if told != before or recent or clock() >= sent_at + LONGEST_SECONDS:
                rows = ",".join(map(self._row, recent))
                frame = f'data: {{"at":{time.time():.3f},"recent":[{rows}],{told[1:]}\n\n'
                async with asyncio.timeout(patience):
                    await send({"type": "http.response.body", "body": frame.encode(), "more_body": True})
                before, sent_at = told, clock()
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await ending.wait()
            except TimeoutError:
                pass

    def _snapshot(self, viewer: Viewer, of_admin_port: bool) -> dict[str, Any]:
        """Everything but the clock and the requests that have ended, which are told once."""
        router, tenant, sees = self._router, self._tenant_of(viewer), self._sees_requests(viewer)
        running = self._recent.running(tenant) if sees else []
        return {
            "object": "cluster.live",
            "model": router.name,
            "viewer": "operator" if viewer.is_operator else "user",
            "router": {"number": router.index + 1, "of": max(1, router.settings.serve.routers)},
            "answers_here": not of_admin_port,
            "workers": [_worker(link, viewer.is_operator) for link in self._links()],
            "running": [running_row(entry) for entry in running[-MOST_RUNNING:]],
            "num_running": len(running),
            "objectives": router.books.levels.describe() if viewer.is_operator else [],
            "num_tokens": self._recent.num_generated(tenant) if sees else 0,
        }

    def _recent_of(self, viewer: Viewer, behind: int) -> Sequence[Entry]:
        if not self._sees_requests(viewer):
            return ()
        return self._recent.ended(behind, MOST_RECENT, self._tenant_of(viewer))

    def _links(self) -> list[WorkerLink]:
        """Of all models that there are while one takes another's place; of two by one name, the one that serves."""
        sets = sorted(self._router.sets.values(), key=lambda each: (each is self._router.serving, each.number))
        return list({link.worker_id: link for each in sets for link in each.fleet.links}.values())

    @staticmethod
    def _sees_requests(viewer: Viewer) -> bool:
        """Where there are no keys, nobody's requests can be told from another's."""
        return viewer.is_operator or viewer.tenant is not None

    @staticmethod
    def _tenant_of(viewer: Viewer) -> str | None:
        """Whose requests are looked for; None: everybody's"""
        return None if viewer.is_operator else viewer.tenant


class _LiveAnswer(Response):
    """An answer without an end, until whoever reads it leaves, or the server does."""

    media_type = "text/event-stream"

    def __init__(self, feed: LiveFeed, viewer: Viewer, of_admin_port: bool) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed
        self._viewer = viewer
        self._of_admin_port = of_admin_port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":  # who wants no body has no end to wait for
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b""})
            return
        try:
            with self._feed.counted(self._viewer):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await unless_gone(receive, self._feed.write(self._viewer, self._of_admin_port, send))
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (Cancelled, OSError, TimeoutError):
            pass  # they left, or have stopped reading


def _row(entry: Entry) -> str:
    return json.dumps(ended_row(entry), separators=(",", ":"))


def _worker(link: WorkerLink, is_operator: bool) -> dict[str, Any]:
    """As /ready tells everybody; how busy it is, and with what, is for operators."""
    told: dict[str, Any] = {"worker_id": link.worker_id, "roles": sorted(link.roles), "state": str(link.state)}
    if is_operator:
        told |= {
            "listed": link.listed,
            "reason": link.reason,
            "device": link.status.device,
            "gauges": {name: link.gauges[name] for name in _GAUGES if name in link.gauges},
            "paths": sorted({(path.owner_role, path.consumer_role, path.transport) for path in link.status.paths}),
        }
    return told
