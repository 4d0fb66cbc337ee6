"""The decode role: blocks reserved before prefill begins, KV pulled chunk by chunk, one token a step."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from triptych.engine.block_keys import BlockKeys
from triptych.engine.jobs import Reserved
from triptych.engine.loop import DecodeJob
from triptych.errors import ClaimExpired, InvalidRecord, TriptychError
from triptych.journey import ClaimId, KVRef, Layout, RequestId, Role
from triptych.services.decode.streams import RouterStream
from triptych.services.site import Language, RoleWorker, Site

log = logging.getLogger(__name__)

_PULL_THREADS = 4


@dataclass(slots=True)
class _Handover:
    """A reserved request whose KV is on its way here."""

    stream: RouterStream
    claim: ClaimId | None = None  # the reservation's own lease: a router that dies before Decode leaves nothing
    cached_tokens: int = 0  # whose KV the reserved blocks held from the start
    landed_tokens: int = 0  # those, and of contiguous refs behind them whose pull was queued
    sent_tokens: int = 0  # of the latter, from another worker
    pulls: list[Future[None]] = field(default_factory=list)


class DecodeWorker(RoleWorker):
    """Owns the blocks of decoding sequences; refs' blocks are copied, then given back."""

    role = Role.DECODE

    def __init__(self, site: Site, language: Language) -> None:
        self._site = site
        self._language = language
        self._engine = language.engine
        self._block_size = site.settings.language.block_size
        self._pulls = ThreadPoolExecutor(_PULL_THREADS, thread_name_prefix="pull-kv")
        self._lock = threading.Lock()
        self._handovers: dict[RequestId, _Handover] = {}
        self._streams: dict[str, RouterStream] = {}
        self._sent_tokens = self._cached_tokens = 0  # of all prompts that began to be decoded

    # ------------------------------------------------------------------------------------------------ routers

    def attach(self, router_id: str, stream: RouterStream) -> None:
        """Tokens for this router go into `stream` from now on; an older stream of the same router is ended."""
        with self._lock:
            older = self._streams.get(router_id)
            self._streams[router_id] = stream
        if older is not None:
            self._end(older)

    def detach(self, router_id: str, stream: RouterStream) -> None:
        """The router's stream broke: tokens it did not get cannot be told from tokens it got, so its requests end."""
        with self._lock:
            if self._streams.get(router_id) is stream:
                del self._streams[router_id]
        self._end(stream)

    def _end(self, stream: RouterStream) -> None:
        for key in stream.close():
            self.cancel(key)

    # ------------------------------------------------------------------------------------------------ requests

    @property
    def finds_prefixes(self) -> bool:
        """Whether KV that is here already is looked for."""
        return self._site.settings.language.prefix_cache

    def block_keys(self, layout: Layout, generated: tuple[int, ...], cache_salt: bytes) -> BlockKeys | None:
        """What `reserve` finds a prompt's beginning by. Takes a while for a long one; not for the event loop."""
        return self._engine.block_keys(layout, generated, cache_salt)

    def reserve(
        self,
        router_id: str,
        key: RequestId,
        attempt: int,
        prompt_tokens: int,
        max_tokens: int,
        branches: int,
        deadline: float,
        on_done: Callable[[Reserved | TriptychError], None],
        keys: BlockKeys | None = None,
    ) -> None:
        """Blocks for the whole request, all or nothing; `on_done` gets what they are or why not."""
        with self._lock:
            stream = self._streams.get(router_id)
            if stream is None or not stream.add(key, branches):
                raise InvalidRecord(f"router {router_id} must Attach before it reserves")
            self._handovers[key] = _Handover(stream)

        def granted(outcome: Reserved | TriptychError) -> None:
            if isinstance(outcome, TriptychError):
                self._drop(key)
            else:
                self._begin_behind(key, outcome.cached_tokens)
                self._hold(key, max(0.0, deadline - time.monotonic()))
            on_done(outcome)

        self._engine.reserve(key, attempt, prompt_tokens, max_tokens, branches, deadline, granted, keys)

    def pull(self, key: RequestId, ref: KVRef) -> None:
        """Copy a chunk's blocks into the reserved ones; returns at once. Raises when it does not follow the last."""
        with self._lock:
            handover = self._handovers.get(key)
            if handover is not None and ref.tokens_begin != handover.landed_tokens:
                raise InvalidRecord(
                    f"KV of tokens [{ref.tokens_begin}, {ref.tokens_end}) came after {handover.landed_tokens} tokens"
                )
            if handover is not None:
                handover.landed_tokens = ref.tokens_end
                if ref.owner != self._site.owner:
                    handover.sent_tokens += ref.tokens_end - ref.tokens_begin
                handover.pulls.append(self._pulls.submit(self._pull, key, ref))
        if handover is None:
            self._language.peers.release(ref.owner, ref.claim_id)
            raise ClaimExpired("the decode reservation is gone; reserve again")

    def start(self, job: DecodeJob) -> float:
        """Begin decoding once every pull has landed; gives the seconds that took. Blocks; not for the event loop.

        Raises the first pull's error, or InvalidRecord when the refs did not cover the prompt.
        """
        began = time.perf_counter()
        key = job.request_id
        with self._lock:
            handover = self._handovers.get(key)
        if handover is None:
            raise ClaimExpired("the decode reservation is gone; reserve again")
        prompt_tokens = job.layout.num_tokens + len(job.generated)
        if handover.landed_tokens != prompt_tokens:
            raise InvalidRecord(f"KV came for {handover.landed_tokens} tokens, the prompt has {prompt_tokens}")
        wait(handover.pulls, timeout=self._site.settings.transfer.copy_timeout_seconds)
        for pull in handover.pulls:
            pull.result(timeout=0)
        with self._lock:
            known = self._handovers.pop(key, None) is handover
            self._sent_tokens += handover.sent_tokens
            self._cached_tokens += handover.cached_tokens
        if not known:
            raise ClaimExpired("the request was cancelled while its KV landed")
        self._site.faults.at("decode.start")
        handover.stream.finish(key, sum(1 for token in job.first if token.finish_reason))
        self._engine.decode(job, handover.stream)
        if handover.claim is not None:
            self._site.leases.release([handover.claim])
        return time.perf_counter() - began

    def cancel(self, key: RequestId) -> None:
        self._drop(key)
        self._engine.cancel(key)

    def gauges(self) -> Mapping[str, float]:
        with self._lock:
            kv = {"kv_sent_tokens_total": self._sent_tokens, "kv_kept_tokens_total": self._cached_tokens}
        return {**self._engine.snapshot(), **kv}

    def idle(self) -> bool:
        with self._lock:
            return not self._handovers and all(stream.idle for stream in self._streams.values()) and self._engine.idle()

    def check(self) -> None:
        self._engine.check()

    def stop(self) -> None:
        self._pulls.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------------------------------------ inside

    def _begin_behind(self, key: RequestId, cached_tokens: int) -> None:
        """KV refs go on behind what the reserved blocks hold already."""
        with self._lock:
            handover = self._handovers.get(key)
            if handover is not None:
                handover.cached_tokens = handover.landed_tokens = cached_tokens

    def _hold(self, key: RequestId, seconds: float) -> None:
        claim = self._site.leases.grant(key, seconds, lambda: self._expire(key))
        with self._lock:
            handover = self._handovers.get(key)
            if handover is not None:
                handover.claim = claim
        if handover is None:
            self._site.leases.release([claim])

    def _expire(self, key: RequestId) -> None:
        """The reservation's lease ended: after Decode began that is its release, before it nobody will come."""
        with self._lock:
            waiting = key in self._handovers
        if waiting:
            self.cancel(key)

    def _drop(self, key: RequestId) -> None:
        with self._lock:
            handover = self._handovers.pop(key, None)
            streams = list(self._streams.values())
        for stream in streams:
            stream.discard(key)
        if handover is not None and handover.claim is not None:
            self._site.leases.release([handover.claim])

    def _pull(self, key: RequestId, ref: KVRef) -> None:
        try:
            blocks = self._engine.share_prompt_blocks(key)
            try:
                first = ref.tokens_begin // self._block_size
                mine = blocks[first : first + len(ref.blocks)]
                self._language.read_blocks(ref, mine)
            finally:
                self._engine.release_blocks(blocks)
        finally:
            self._language.peers.release(ref.owner, ref.claim_id)
