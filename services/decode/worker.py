"""The decode role: blocks reserved before prefill begins, KV pulled chunk by chunk, one token a step."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from triptych.engine.block_keys import BlockKeys
from triptych.engine.jobs import Reserved
from triptych.engine.loop import DecodeJob
from triptych.errors import ClaimExpired, InvalidRecord, Overloaded, TriptychError
from triptych.journey import ClaimId, KVRef, Layout, RequestId, Role
from triptych.services.decode.handover import Event, Handover
from triptych.services.decode.streams import RouterStream
from triptych.services.pull_pool import PullPool
from triptych.services.site import Language, RoleWorker, Site
from triptych.transfer.protocol.takeover import (
    DropPull,
    FreeBlocks,
    GiveBack,
    KVSpan,
    Refuse,
    Start,
    StartPull,
    Takeover,
    TakeoverAction,
)

_PULL_THREADS = 4


class DecodeWorker(RoleWorker):
    """Owns the blocks of decoding sequences; refs' blocks are copied, then given back."""

    role = Role.DECODE

    def __init__(self, site: Site, language: Language) -> None:
        self._site, self._language = site, language
        self.engine = language.engine
        self._block_size = site.settings.language.block_size
        self._pulls = PullPool("pull-kv", _PULL_THREADS)
        # One thread, so that reservations stay in order of arrival: a long prompt has many keys, which must hold up
        # neither the event loop nor the engine's steps.
        self.keying = ThreadPoolExecutor(1, thread_name_prefix="block-keys")
        self._lock = threading.Lock()
        self._handovers: dict[RequestId, Handover] = {}
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

    @property
    def landing_seconds(self) -> float:
        """How long KV may take to land, from the last ref on."""
        return self._site.settings.transfer.copy_timeout_seconds

    def block_keys(self, layout: Layout, generated: tuple[int, ...], cache_salt: bytes) -> BlockKeys | None:
        """What `reserve` finds a prompt's beginning by. Takes a while for a long one; not for the event loop."""
        return self.engine.block_keys(layout, generated, cache_salt)

    def reserve(
        self,
        router_id: str,
        key: RequestId,
        attempt: int,
        prompt_tokens: int,
        max_tokens: int,
        branches: int,
        deadline: float,
        waits_until: float,
        on_done: Callable[[Reserved | TriptychError], None],
        keys: BlockKeys | None = None,
        priority: int = 0,
    ) -> None:
        """Blocks to begin with, all or nothing; `on_done` gets what they are or why not. May be repeated."""
        with self._lock:
            stream = self._streams.get(router_id)
            if stream is not None and key not in self._handovers and stream.serves(key):
                raise InvalidRecord("this attempt is being decoded: its reservation has been used")
            if stream is None or not stream.add(key, branches):
                raise InvalidRecord(f"router {router_id} must Attach before it reserves")
            handover = self._handovers.setdefault(key, Handover(key, stream, Takeover(prompt_tokens)))

        def granted(outcome: Reserved | TriptychError) -> None:
            seconds = deadline - time.monotonic()
            if isinstance(outcome, Reserved) and seconds <= 0:  # nobody waits any more, and no lease is that short
                self.engine.cancel(key)
                outcome = Overloaded(f"{outcome.num_blocks} KV blocks came free {-seconds:.3f} s after the deadline")
            if isinstance(outcome, TriptychError):
                kind, reason = type(outcome), outcome.message
                self._tell(handover, lambda takeover, now: takeover.refused(now, kind, reason))
            else:
                cached_tokens = outcome.cached_tokens
                self._tell(handover, lambda takeover, now: takeover.reserved(now, cached_tokens))
                self._hold(handover, seconds)
            on_done(outcome)

        self.engine.reserve(key, attempt, prompt_tokens, max_tokens, branches, waits_until, granted, keys, priority)

    def pull(self, key: RequestId, ref: KVRef) -> None:
        """Copy a chunk's blocks into the reserved ones; returns at once. Raises when it does not follow the last."""
        with self._lock:
            handover = self._handovers.get(key)
        if handover is None:
            self._language.peers.release_stray(ref.owner, ref.claim_id)
            raise _gone()
        size = ref.block_size or self._block_size
        span = KVSpan(ref.claim_id, ref.owner, ref.tokens_begin, ref.tokens_end, len(ref.blocks), size)
        handover.refs[ref.claim_id] = ref
        self._tell(handover, lambda takeover, now: takeover.ref(now, span))
        if not handover.takeover.is_wanted:
            raise handover.failure or _gone()

    def land(self, job: DecodeJob) -> Future[TriptychError | None]:
        """The last ref has come, and the first tokens. Done, with a pull's error if there was one, once all have ended.

        Raises InvalidRecord when the refs did not cover the prompt.
        """
        with self._lock:
            handover = self._handovers.get(job.request_id)
        if handover is None:
            raise _gone()
        received, prompt_tokens = handover.takeover.tokens_received, job.layout.num_tokens + len(job.generated)
        if received != prompt_tokens:
            raise InvalidRecord(f"KV came for {received} tokens, the prompt has {prompt_tokens}")
        self._tell(handover, lambda takeover, now: takeover.first(now))
        return handover.settled

    def start(self, job: DecodeJob) -> None:
        """Begin decoding, now that all the KV has landed."""
        key = job.request_id
        with self._lock:
            handover = self._handovers.get(key)
        if handover is None or not handover.takeover.has_started:
            raise _gone()
        with self._lock:
            known = self._handovers.pop(key, None) is handover
            self._sent_tokens += handover.sent_tokens
            self._cached_tokens += handover.takeover.cached_tokens
        if not known:
            raise ClaimExpired("the request was cancelled while its KV landed")
        self._site.faults.at("decode.start")
        handover.stream.finish(key, sum(1 for token in job.first if token.finish_reason))
        self.engine.decode(job, handover.stream)
        if handover.claim is not None:
            self._site.leases.release([handover.claim])

    def cancel(self, key: RequestId) -> None:
        """Blocks that pulls still write into are freed behind the last of them."""
        with self._lock:
            handover = self._handovers.get(key)
            started = handover is not None and handover.takeover.has_started
            if started:  # its KV has landed, and nobody has begun to decode
                del self._handovers[key]
        self._discard(key)
        if handover is None or started:
            self.engine.cancel(key)
        if handover is not None:
            self._tell(handover, lambda takeover, now: takeover.cancelled(now))
            if started and handover.claim is not None:
                self._site.leases.release([handover.claim])

    def gauges(self) -> Mapping[str, float]:
        with self._lock:
            kv = {"kv_sent_tokens_total": self._sent_tokens, "kv_kept_tokens_total": self._cached_tokens}
        return self.engine.snapshot() | kv

    def idle(self) -> bool:
        with self._lock:
            return not self._handovers and all(stream.idle for stream in self._streams.values()) and self.engine.idle()

    def check(self) -> None:
        self.engine.check()

    def stop(self) -> None:
        self._pulls.stop()
        self.keying.shutdown(wait=False, cancel_futures=True)

    def _hold(self, handover: Handover, seconds: float) -> None:
        """Puts the granted blocks under a lease: a router that dies before Decode leaves nothing."""
        with self._lock:  # one lease, however often they are granted: the first to end ends the reservation
            if handover.claim is None and self._handovers.get(handover.key) is handover:
                handover.claim = self._site.leases.grant(handover.key, seconds, lambda: self._expire(handover))

    def _expire(self, handover: Handover) -> None:
        """The reservation's lease ended: after Decode began that is its release, before it nobody will come."""
        with self._lock:
            is_waiting = self._handovers.get(handover.key) is handover
        if is_waiting:
            self._tell(handover, lambda takeover, now: takeover.expired(now))

    def _discard(self, key: RequestId) -> None:
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.discard(key)

    def _tell(self, handover: Handover, event: Event) -> None:
        """Something has happened to a takeover: does what follows from it."""
        with self._lock:
            waiting = deque[TakeoverAction](event(handover.takeover, time.monotonic()))
        while waiting:
            then = self._do(handover, waiting.popleft())
            if then is not None:
                with self._lock:
                    waiting.extend(then(handover.takeover, time.monotonic()))

    def _do(self, handover: Handover, action: TakeoverAction) -> Event | None:
        """What follows at once, if anything does."""
        match action:
            case StartPull(span, keep_tokens):
                self._start_pull(handover, span.claim, keep_tokens)
            case DropPull(claim):
                # One that runs already ends by itself: it is told that it is not wanted, or it lands.
                pull = handover.pulls.get(claim)
                if pull is not None and pull.cancel():
                    return lambda takeover, now: takeover.pull_dropped(now, claim)
            case GiveBack(owner, claim):
                self._language.peers.release(owner, claim)
            case Refuse(kind, reason):
                handover.fail(kind, reason)
            case Start():
                handover.settle()
            case FreeBlocks():
                self._free(handover)
        return None

    def _start_pull(self, handover: Handover, claim: ClaimId, keep_tokens: int) -> None:
        ref = handover.refs[claim]
        if ref.owner != self._site.owner:
            handover.sent_tokens += ref.tokens_end - max(ref.tokens_begin, keep_tokens)
        # It may queue behind other pulls for longer than its lease.
        self._language.peers.keep(ref.owner, claim, ref.lease_seconds)
        handover.pulls[claim] = self._pulls.submit(ref.owner, partial(self._pull, handover, ref, keep_tokens))

    def _free(self, handover: Handover) -> None:
        with self._lock:
            if self._handovers.get(handover.key) is handover:
                del self._handovers[handover.key]
        handover.fail(ClaimExpired, "the request was cancelled while its KV landed")
        self._discard(handover.key)
        self.engine.cancel(handover.key)
        if handover.claim is not None:
            self._site.leases.release([handover.claim])

    def _pull(self, handover: Handover, ref: KVRef, keep_tokens: int) -> None:
        claim = ref.claim_id
        try:
            self._read(handover, ref, keep_tokens)
        except Exception as error:
            told = handover.met(error)
            self._tell(handover, lambda takeover, now: takeover.pull_failed(now, claim, type(told), told.message))
        else:
            self._tell(handover, lambda takeover, now: takeover.pull_landed(now, claim))

    def _read(self, handover: Handover, ref: KVRef, keep_tokens: int) -> None:
        try:
            # A second guard: the engine itself may end a reservation, at its deadline or with all others.
            blocks = self.engine.share_prompt_blocks(handover.key)
        except BaseException:
            self._language.peers.release(ref.owner, ref.claim_id)
            raise
        try:
            self._language.read_blocks(ref, blocks, keep_tokens, lambda: handover.takeover.is_wanted)
        finally:
            self.engine.release_blocks(blocks)


def _gone() -> ClaimExpired:
    return ClaimExpired("the decode reservation is gone; reserve again")
