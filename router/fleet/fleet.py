"""The workers a router knows, and the snapshot that placement decides on."""

import asyncio
import contextlib
import logging
import math
import secrets
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from triptych.config import RouterSettings
from triptych.errors import NoWorker, TransferFailed
from triptych.journey import Endpoint, Role
from triptych.metrics import RouterMetrics
from triptych.multimodal.memfd import MediaMemory
from triptych.router.fleet.link import KnownWorker, WorkerLink
from triptych.router.fleet.link_state import LinkState
from triptych.router.fleet.pairs import describe_paths, pair_counts
from triptych.router.fleet.placement import Snapshot, place_items, place_prompt, place_stream
from triptych.router.fleet.reported import histograms, load, tier, token_limit
from triptych.router.fleet.router_identity import RouterIdentity
from triptych.wire.membership import Membership

logger = logging.getLogger(__name__)

RESTART_PATIENCE_SECONDS = 20.0

# gRPC tells the end of cancelled calls a moment later, to the loop that made them, which should still be there.
_LAST_EVENTS_SECONDS = 0.02


class Fleet:
    """Told who there is by `update`; finds out the rest itself. All methods belong to the router's event loop."""

    def __init__(
        self,
        settings: RouterSettings,
        fingerprint: bytes,
        metrics: RouterMetrics,
        workers: Sequence[KnownWorker] | None = (),
        *,
        media_by_memfd: bool = True,
        restart_patience_seconds: float = RESTART_PATIENCE_SECONDS,
        membership: Membership | None = None,
        self_test: bool = False,
    ) -> None:
        """workers: None where `update` will tell: until then any may be coming

        self_test: somebody will prove every worker before it takes anything
        """
        self.router_id = secrets.token_hex(8)
        self.snapshot = Snapshot.of(())
        self._patience_seconds = min(settings.stage_timeout_seconds, restart_patience_seconds)
        self.metrics = metrics
        self._gauges = metrics.worker_gauges  # of several fleets, whose workers have different ids
        self._shown: set[tuple[str, str]] = set()  # what of it is ours
        nonce = secrets.token_bytes(16)
        probe = _probe_memory(nonce) if media_by_memfd else None
        self._identity = RouterIdentity(
            *(self.router_id, fingerprint, settings.status_interval_seconds, probe, nonce),
            settings.status_timeout_seconds,
            membership or Membership(),
            self_test,
        )
        self._is_told = workers is not None
        self._known: dict[str, KnownWorker] = {worker.worker_id: worker for worker in workers or ()}
        self._links: dict[str, WorkerLink] = {}
        self._rows: list[WorkerLink] = []
        self._seen: set[Role] = set()  # roles that have had a ready worker
        # What every request asks of the snapshot, which takes longer to tell it than the request to go on.
        self._ready: set[Role] = set()
        self._token_limit = self._item_limit = math.inf
        self._news = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()
        self._running = self._stopped = False

    async def start(self) -> None:
        self._running = True
        if self._is_told:
            self.update(list(self._known.values()))

    async def stop(self) -> None:
        self._running, self._stopped = False, True
        links = list(self._links.values())
        self._links.clear()
        self._rebuild()
        self._tell()
        await asyncio.gather(*(link.close() for link in links), *self._closing, return_exceptions=True)
        await asyncio.sleep(_LAST_EVENTS_SECONDS)
        if self._identity.probe is not None:
            self._identity.probe.close()

    def update(self, workers: Sequence[KnownWorker]) -> None:
        """Who there is from now on.

        Another process under a known id ends the link at once. A worker that is missing gets nothing new, but keeps
        what it has while it answers: a list that was made in haste must not end requests.
        """
        self._is_told = True
        before, self._known = self._known, {worker.worker_id: worker for worker in workers}
        if not self._running or (self._links and self._known == before):
            return
        for worker_id, link in list(self._links.items()):
            worker = self._known.get(worker_id)
            link.listed = worker is not None
            if worker is not None and worker != before.get(worker_id) and worker.endpoint != link.endpoint:
                self._count_loss(link)
                self._close(self._links.pop(worker_id))
        for worker in workers:
            if worker.worker_id not in self._links:
                self._connect(worker)
        self._rebuild()

    @property
    def links(self) -> Sequence[WorkerLink]:
        """In the order of the snapshot's rows."""
        return self._rows

    def is_ready(self, role: Role) -> bool:
        return role in self._ready

    def why_not_ready(self, role: Role) -> dict[str, str]:
        """By worker, of those that have the role or may have: why it takes nothing."""
        return {
            link.worker_id: f"{link.state}: {link.reason}"
            for link in self._rows
            if not link.takes(role) and (role in link.roles or not link.roles)
        }

    async def wait_ready(self, role: Role) -> None:
        """Returns once a worker of the role is ready; waits only for one that comes back, or may be coming.

        Raises NoWorker.
        """
        if self.is_ready(role):
            return
        if self._stopped:
            raise NoWorker(f"no {role} worker of this request's model is left")
        if role not in self._seen and not self._may_come(role):
            raise NoWorker(f"no {role} worker is ready")
        try:
            async with asyncio.timeout(self._patience_seconds):
                while not (self.is_ready(role) or self._stopped):
                    await self._news.wait()
        except TimeoutError:
            raise NoWorker(f"no {role} worker is ready, after {self._patience_seconds:g} s of waiting") from None
        if self._stopped:
            raise NoWorker(f"no {role} worker of this request's model is left")

    async def wait_news(self, seconds: float) -> None:
        """Returns when some worker has changed, or the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds if seconds < math.inf else None):
                await self._news.wait()

    def _may_come(self, role: Role) -> bool:
        """Whether none was named yet, or one of this role or of unknown ones that has not answered yet."""
        return not self._is_told or any(
            link.state in (LinkState.UNKNOWN, LinkState.TESTING) and (not link.roles or role in link.roles)
            for link in self._links.values()
        )

    async def encoders_for(self, encoder_tokens: Sequence[int], avoid: Collection[WorkerLink] = ()) -> list[WorkerLink]:
        """The encoder for each item. Raises NoWorker."""
        await self.wait_ready(Role.ENCODE)
        rows = place_items(
            self.snapshot.roles[Role.ENCODE], encoder_tokens, self._rows_of(avoid), self.snapshot.item_limits
        )
        return [self._rows[row] for row in rows]

    async def prefill_for(self, avoid: Collection[WorkerLink] = (), decodes: WorkerLink | None = None) -> WorkerLink:
        """The worker for a prompt: the one that decodes behind it, where that takes prompts, too. Raises NoWorker."""
        if decodes is not None and decodes.takes(Role.PREFILL):
            return decodes
        await self.wait_ready(Role.PREFILL)
        return self._rows[place_prompt(self.snapshot.roles[Role.PREFILL], self._rows_of(avoid))]

    async def decode_for(self, avoid: Collection[WorkerLink] = ()) -> WorkerLink:
        """The worker for a stream of tokens. Raises NoWorker."""
        await self.wait_ready(Role.DECODE)
        return self._rows[place_stream(self.snapshot.roles[Role.DECODE], self._rows_of(avoid))]

    def max_model_len(self, of_card: int) -> int:
        """Tokens of prompt and output together that some ready decode worker takes."""
        return int(min(of_card, self._token_limit))

    def max_item_tokens(self) -> int:
        """Encoder tokens of the largest item that some ready encoder takes; no limit where none is ready or tells."""
        return int(min(sys.maxsize, self._item_limit))

    def describe(self) -> list[dict[str, Any]]:
        """The workers as JSON values, for /v1/cluster."""
        return [
            {
                "worker_id": link.worker_id,
                "address": link.address,
                "incarnation": str(link.incarnation),  # 64 bits: more than a JSON reader's number may hold
                "roles": sorted(link.roles),
                "state": str(link.state),
                "reason": link.reason,
                "device": link.status.device,
                "pid": link.status.pid,
                "idle": link.status.idle,
                "media": "memfd" if link.media_by_memfd else "chunks",
                "paths": describe_paths(link.status),
                "gauges": dict(sorted(link.gauges.items())),
                "booked": {str(role): link.bookings[role].total for role in sorted(link.roles)},
            }
            for link in self._rows
        ]

    def count_by_state(self) -> Counter[tuple[str, str]]:
        """Workers by tier and state."""
        return Counter((tier(link), str(link.state)) for link in self._rows)

    def _heard(self, link: WorkerLink) -> None:
        """Writes one worker's row; replaces a lost link while its worker is still said to be there."""
        if self._links.get(link.worker_id) is not link:
            return
        if link.state is LinkState.LOST:
            self._count_loss(link)
            self._replace(link)
            return
        self._write(self.snapshot.row_by_id[link.worker_id], link)
        self._look()

    def _booked(self, link: WorkerLink, role: Role, total: float) -> None:
        if self._links.get(link.worker_id) is link:
            self.snapshot.roles[role].booked[self.snapshot.row_by_id[link.worker_id]] = total

    def _connect(self, worker: KnownWorker) -> None:
        self._links[worker.worker_id] = WorkerLink(worker, self._identity, self._heard, self._booked)

    def _replace(self, lost: WorkerLink) -> None:
        self._close(self._links.pop(lost.worker_id))
        worker = self._known.get(lost.worker_id)
        if worker is not None and self._running:
            # Whoever answers there now is welcome; who it is, its Status tells.
            self._connect(KnownWorker(worker.worker_id, Endpoint(worker.endpoint.address, 0), worker.roles))
        self._rebuild()

    def _rebuild(self) -> None:
        self.snapshot = Snapshot.of(list(self._links))
        self._rows = [self._links[worker_id] for worker_id in self.snapshot.worker_ids]
        for shown in self._shown:
            self._gauges.forget(shown)
        self._shown.clear()
        for row, link in enumerate(self._rows):
            if link.roles:  # from 0 on: the first loss is an increase, too
                self.metrics.count("triptych:worker_links_lost_total", 0, worker_type=tier(link))
            self._write(row, link)
        self._look()

    def _write(self, row: int, link: WorkerLink) -> None:
        for role in link.roles:
            columns = self.snapshot.roles[role]
            columns.booked[row] = link.bookings[role].total
            columns.reported[row], columns.room[row] = load(role, link.gauges)
            columns.ready[row] = link.takes(role)
            if columns.ready[row]:
                self._seen.add(role)
        self.snapshot.token_limits[row] = token_limit(link)
        self.snapshot.item_limits[row] = link.status.max_item_tokens or math.inf  # 0 counts as not told
        shown = link.worker_id, tier(link)
        self._shown.add(shown)
        self._gauges.tell(shown, link.gauges, pair_counts(link.status), histograms(link.status))
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _look(self) -> None:
        snapshot = self.snapshot
        self._ready = {role for role in Role if snapshot.roles[role].ready.any()}
        self._token_limit, self._item_limit = snapshot.token_limit(), snapshot.item_limit()

    def _count_loss(self, link: WorkerLink) -> None:
        """Once for each process: not where one had drained, nor where none has answered since the last was lost."""
        if link.incarnation and link.status.state != "draining":
            self.metrics.count("triptych:worker_links_lost_total", worker_type=tier(link))

    def _rows_of(self, links: Collection[WorkerLink]) -> list[int]:
        return [row for row, link in enumerate(self._rows) if link in links]

    def _close(self, link: WorkerLink) -> None:
        link.lose("another process takes its place")
        task = asyncio.create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _probe_memory(nonce: bytes) -> MediaMemory | None:
    try:
        return MediaMemory(nonce)
    except TransferFailed as error:
        logger.warning("media travel in chunks: %s", error)
        return None
