"""The prefill role: pulls rows, computes KV, hands its blocks over as refs."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial

from triptych.engine.jobs import PrefillJob, Window
from triptych.errors import InternalError, TriptychError
from triptych.journey import BlockRef, EmbeddingRef, KVRef, RequestId, Role, Shard, Token
from triptych.services.prefill.awaited import AwaitedRows
from triptych.services.pull_pool import PullPool
from triptych.services.site import KV_ARENA, Language, RoleWorker, Site
from triptych.stages import StageSpan
from triptych.transfer.checksum import checksum
from triptych.transfer.leases import Claimed

log = logging.getLogger(__name__)

_PULL_THREADS = 4


@dataclass(frozen=True, slots=True)
class Granted:
    """Blocks and the window's landing rows are reserved.

    held: items of the window whose rows this process's own encoder has: they are on their way already
    """

    window: Window
    held: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """The prompt is computed; one token per branch."""

    tokens: tuple[Token, ...]
    times: Sequence[StageSpan]
    cached_tokens: int  # of the prompt, whose KV was there already


PrefillEvent = Granted | KVRef | FirstTokens
Emit = Callable[[PrefillEvent | TriptychError], None]


@dataclass(slots=True)
class _Call:
    """One prompt being prefilled; also the engine's sink for it."""

    worker: "PrefillWorker"
    job: PrefillJob
    lease_seconds: float
    emit: Emit
    checksums: bool  # wanted of the KV, whatever the settings say
    transfers: list[StageSpan] = field(default_factory=list)
    awaited: AwaitedRows = field(init=False)  # under the worker's lock

    def __post_init__(self) -> None:
        self.awaited = AwaitedRows(self.job.layout)

    def granted(self, window: Window) -> None:
        self.emit(Granted(window, self.worker.grant(self, window)))

    def kv_ready(self, blocks: tuple[BlockRef, ...], tokens_begin: int, tokens_end: int, last: bool) -> None:
        ref = self.worker.export(self, blocks, tokens_begin, tokens_end)
        if ref is not None:
            self.emit(ref)

    def first_tokens(self, tokens: tuple[Token, ...], times: Sequence[StageSpan]) -> None:
        self.worker.forget(self.job.request_id)
        self.emit(FirstTokens(tokens, (*times, *self.transfers), self.awaited.cached_tokens))

    def failed(self, error: TriptychError) -> None:
        self.worker.forget(self.job.request_id)
        self.emit(error)


class PrefillWorker(RoleWorker):
    """Owns the KV blocks of a prompt until the decode worker has released them or their lease has ended."""

    role = Role.PREFILL

    def __init__(self, site: Site, language: Language) -> None:
        self._site = site
        self._language = language
        self._engine = language.engine
        self._pulls = PullPool("pull-rows", _PULL_THREADS)
        self._lock = threading.Lock()
        self._calls: dict[RequestId, _Call] = {}

    def begin(self, job: PrefillJob, lease_seconds: float, emit: Emit, checksums: bool = False) -> None:
        """Queue a prompt; everything that happens to it is emitted, from engine and pull threads."""
        call = _Call(self, job, lease_seconds, emit, checksums)
        with self._lock:
            self._calls[job.request_id] = call
        self._engine.prefill(job, call)

    def grant(self, call: _Call, window: Window) -> tuple[int, ...]:
        """Rows of the window's items may come from now on; those which do so from here.

        That spares what would be the longest part of a prompt's way whose KV is here but for its end: over the router
        to the encoder in this very process, and back.
        """
        with self._lock:
            call.awaited.grant(window)
        return tuple(index for index in window.items if self._deliver_from_here(call, index))

    def _deliver_from_here(self, call: _Call, item_index: int) -> bool:
        rows_here = self._site.rows_here
        if rows_here is None or call.checksums:  # which rows that are there may not have
            return False
        job = call.job
        ref = rows_here(job.request_id, job.layout.items[item_index], call.lease_seconds)
        if ref is not None:
            self.deliver(job.request_id, item_index, ref)
        return ref is not None

    def deliver(self, key: RequestId, item_index: int, ref: EmbeddingRef) -> None:
        """Pull an item's rows into the request's landing memory. Returns at once.

        An item that comes again, or whose KV is cached, is given back. Raises LayoutMismatch, having given the claim
        back, for a ref that is not what the layout expects at that place, or whose window has not been granted.
        """
        call = None
        try:
            with self._lock:
                known = self._calls.get(key)
                if known is not None and known.awaited.take(item_index, ref):
                    call = known
        finally:
            if call is None:
                self._language.peers.release_stray(ref.owner, ref.claim_id)
        if call is not None:
            # It may queue behind other pulls for longer than its lease.
            self._language.peers.keep(ref.owner, ref.claim_id, ref.lease_seconds)
            self._pulls.submit(ref.owner, partial(copy_context().run, self._pull, call, item_index, ref))

    def export(self, call: _Call, blocks: tuple[BlockRef, ...], tokens_begin: int, tokens_end: int) -> KVRef | None:
        """A claim on the blocks; the engine's share of them ends with it. None, and no claim, once cancelled."""
        ids = [block.id for block in blocks]
        slab = self._language.slab
        event = slab.record_event()
        covers = Claimed(KV_ARENA, tuple(ids), event)
        # Under the lock that `forget` takes: a claim granted behind a cancel's sweep would live until its lease ends.
        with self._lock:
            known = self._calls.get(call.job.request_id) is call
            if known:
                claim = self._site.leases.grant(
                    call.job.request_id, call.lease_seconds, lambda: self._engine.release_blocks(ids), covers
                )
        if not known:
            self._engine.release_blocks(ids)
            return None
        self._site.faults.at("kv.export")
        digest = b""
        if self._site.settings.transfer.checksums or call.checksums:
            digest = checksum(slab.data.view(slab.num_units, slab.unit_bytes)[ids])
        return KVRef(
            claim_id=claim,
            owner=self._site.owner,
            blocks=blocks,
            tokens_begin=tokens_begin,
            tokens_end=tokens_end,
            shards=(Shard(rank=0, arena=KV_ARENA, offset=0),),
            dtype=self._language.format.dtype,
            kv_layout=self._language.layout,
            block_size=self._language.format.block_size,
            lease_seconds=call.lease_seconds,
            event=event,
            checksum=digest,
        )

    def forget(self, key: RequestId) -> None:
        with self._lock:
            self._calls.pop(key, None)

    def cancel(self, key: RequestId) -> None:
        self.forget(key)
        self._engine.cancel(key)
        self._site.leases.release_request(key)

    def gauges(self) -> Mapping[str, float]:
        return self._engine.snapshot()

    def idle(self) -> bool:
        return not self._calls and self._engine.idle()

    def check(self) -> None:
        self._engine.check()

    def stop(self) -> None:
        self._pulls.stop()

    def _pull(self, call: _Call, item_index: int, ref: EmbeddingRef) -> None:
        key = call.job.request_id
        began = time.monotonic()
        try:
            into = self._engine.landing(key, item_index)
        except Exception as error:
            self._language.peers.release(ref.owner, ref.claim_id)
            self._fail(call, error)
            return
        try:
            self._language.read_rows(ref, into, lambda: self._calls.get(key) is call)
            call.transfers.append(StageSpan("rows_transfer", began, time.monotonic(), item_index))
            self._engine.rows_landed(key, item_index)
        except Exception as error:
            self._fail(call, error)

    def _fail(self, call: _Call, error: Exception) -> None:
        with self._lock:
            known = self._calls.pop(call.job.request_id, None) is call
        if not known:  # cancelled meanwhile: its landing memory is gone, and nobody listens
            return
        self._engine.cancel(call.job.request_id)
        if not isinstance(error, TriptychError):
            log.error("pulling rows failed", exc_info=error)
            error = InternalError(f"pulling rows failed: {type(error).__name__}")
        call.emit(error)
