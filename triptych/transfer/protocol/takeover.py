"""One request at its decode worker: blocks reserved, KV taken over ref by ref, decoding started.

    RESERVING ─reserved─▶ RECEIVING ─first─▶ LANDING ─last pull landed─▶ STARTED
        └── refused, cancelled, expired, bad ref, failed pull ──┴──▶ ENDING ─last pull ended─▶ ENDED

    event                                  gives                  meaning

    reserved(now, cached_tokens)                                  the blocks are ours; so much of the prompt is in them
      … too late                           FreeBlocks             nobody waits for them any more
    refused(now, kind, reason)             Refuse, FreeBlocks     there will be no blocks
    ref(now, span)                         StartPull              KV can be pulled: must follow what came before
      … of cached tokens alone, or late    GiveBack
      … seen before
      … out of place, or of torn blocks    GiveBack, Refuse, end
    pull_landed(now, claim)                Start once it is last  verdict and all: the span is here
    pull_failed(now, claim, kind, reason)  Refuse, end            and nothing writes for it any more
    pull_dropped(now, claim)               GiveBack, Refuse, end  it had not begun, and never will
    first(now)                             Start once all landed  the last ref has come, and the first tokens
      … with KV missing                    Refuse, end
    cancelled(now), expired(now)           end                    the router gave up, or never came

"end" is DropPull for each pull that has not ended, and FreeBlocks once none is left: the blocks stay whoever's they
are while a pull may still write into them. After Start they belong to the sequence, and nothing here frees them.

A claim that was handed to a pull is released by that pull (pulling.py), every other one by GiveBack; each once.
Refuse comes at most once: it is what the Decode call, or the Reserve call, fails with.
"""

import enum
from dataclasses import dataclass

from triptych.errors import ClaimExpired, InvalidRecord, InvariantViolation, TriptychError
from triptych.journey import ClaimId, Endpoint


@dataclass(frozen=True, slots=True)
class KVSpan:
    """What a KV ref says of its place in the prompt.

    block_size: tokens in a block of the sender
    num_blocks: the ref's blocks; the first begins with token `begin`
    """

    claim: ClaimId
    owner: Endpoint
    begin: int
    end: int
    num_blocks: int
    block_size: int


@dataclass(frozen=True, slots=True)
class StartPull:
    """Pull the span into the reserved blocks: answer pull_landed, pull_failed or pull_dropped.

    keep_tokens: from the beginning of the prompt; what lies there is others' too, and must not be written
    """

    span: KVSpan
    keep_tokens: int


@dataclass(frozen=True, slots=True)
class DropPull:
    """The span is not wanted any more: the pull's answer is awaited all the same."""

    claim: ClaimId


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Release a claim that no pull was started for."""

    owner: Endpoint
    claim: ClaimId


@dataclass(frozen=True, slots=True)
class Start:
    """All the KV is here: decode."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell the router: an error of this kind."""

    kind: type[TriptychError]
    reason: str


@dataclass(frozen=True, slots=True)
class FreeBlocks:
    """Nothing writes into the reserved blocks any more, and nobody wants them. Also withdraws a reservation."""


TakeoverAction = StartPull | DropPull | GiveBack | Start | Refuse | FreeBlocks
TakeoverActions = tuple[TakeoverAction, ...]


class TakeoverState(enum.StrEnum):
    RESERVING = "reserving"
    RECEIVING = "receiving"
    LANDING = "landing"
    STARTED = "started"
    ENDING = "ending"
    ENDED = "ended"


_OPEN = (TakeoverState.RESERVING, TakeoverState.RECEIVING, TakeoverState.LANDING)


class Takeover:
    """One attempt of one request. Not thread-safe.

    prompt_tokens: whose KV must be here before decoding starts
    """

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.state = TakeoverState.RESERVING
        self.cached_tokens = 0
        self.tokens_received = 0  # of contiguous spans whose pull was started, behind those cached
        self._pulls: dict[ClaimId, KVSpan] = {}  # that have not ended
        self._seen: set[ClaimId] = set()

    @property
    def is_over(self) -> bool:
        """Whether no pull writes, and none will."""
        return self.state in (TakeoverState.STARTED, TakeoverState.ENDED)

    @property
    def is_wanted(self) -> bool:
        """Whether it may still come to a start, or has."""
        return self.state in _OPEN or self.has_started

    @property
    def has_started(self) -> bool:
        return self.state is TakeoverState.STARTED

    @property
    def pulls(self) -> tuple[ClaimId, ...]:
        """Claims that are being pulled."""
        return tuple(self._pulls)

    # ------------------------------------------------------------------------------------------------- events

    def reserved(self, now: float, cached_tokens: int) -> TakeoverActions:
        if self.state is TakeoverState.ENDED:
            return (FreeBlocks(),)
        if self.state is not TakeoverState.RESERVING:
            return ()
        if not 0 <= cached_tokens <= self.prompt_tokens:
            reason = f"{cached_tokens} tokens of the prompt are said to be cached, it has {self.prompt_tokens}"
            return self._end(InvalidRecord, reason)
        self.state = TakeoverState.RECEIVING
        self.cached_tokens = self.tokens_received = cached_tokens
        return ()

    def refused(self, now: float, kind: type[TriptychError], reason: str) -> TakeoverActions:
        return self._end(kind, reason) if self.state is TakeoverState.RESERVING else ()

    def ref(self, now: float, span: KVSpan) -> TakeoverActions:
        if span.claim in self._seen:
            return ()
        self._seen.add(span.claim)
        if self.state not in _OPEN or span.end <= self.cached_tokens:
            return (GiveBack(span.owner, span.claim),)
        misfit = self._misfit(span)
        if misfit:
            return (GiveBack(span.owner, span.claim), *self._end(InvalidRecord, misfit))
        self.tokens_received = span.end
        self._pulls[span.claim] = span
        return (StartPull(span, self.cached_tokens),)

    def pull_landed(self, now: float, claim: ClaimId) -> TakeoverActions:
        if self._pulls.pop(claim, None) is None:
            return ()
        return self._settle()

    def pull_failed(self, now: float, claim: ClaimId, kind: type[TriptychError], reason: str) -> TakeoverActions:
        if self._pulls.pop(claim, None) is None:
            return ()
        return self._end(kind, reason) if self.state in _OPEN else self._settle()

    def pull_dropped(self, now: float, claim: ClaimId) -> TakeoverActions:
        span = self._pulls.pop(claim, None)
        if span is None:
            return ()
        rest = self._end(ClaimExpired, "a pull was dropped") if self.state in _OPEN else self._settle()
        return (GiveBack(span.owner, claim), *rest)

    def first(self, now: float) -> TakeoverActions:
        if self.state not in (TakeoverState.RESERVING, TakeoverState.RECEIVING):
            return ()
        if self.state is TakeoverState.RESERVING or self.tokens_received != self.prompt_tokens:
            reason = f"KV came for {self.tokens_received} tokens, the prompt has {self.prompt_tokens}"
            return self._end(InvalidRecord, reason)
        self.state = TakeoverState.LANDING
        return self._settle()

    def cancelled(self, now: float) -> TakeoverActions:
        return self._end() if self.state in _OPEN else ()

    def expired(self, now: float) -> TakeoverActions:
        if self.state not in _OPEN:
            return ()
        return self._end(ClaimExpired, "the decode reservation has expired; reserve again")

    def check(self) -> None:
        """Raises InvariantViolation with the first rule that does not hold."""
        if self.is_over and self._pulls:
            raise InvariantViolation(f"{len(self._pulls)} pulls write for a request that is {self.state}")
        if self.state is TakeoverState.ENDING and not self._pulls:
            raise InvariantViolation("a request waits for pulls that have all ended")
        if not self.cached_tokens <= self.tokens_received <= self.prompt_tokens:
            raise InvariantViolation(f"KV came for {self.tokens_received} of {self.prompt_tokens} tokens")

    # ------------------------------------------------------------------------------------------------- inside

    def _misfit(self, span: KVSpan) -> str:
        """Why the span is not what must come next; empty when it is."""
        at = f"KV of tokens [{span.begin}, {span.end})"
        if self.state is not TakeoverState.RECEIVING:
            return f"{at} came while the request is {self.state}"
        # The first span may begin ahead of what is cached, with the sender's block that holds the first missing token.
        is_first = self.tokens_received == self.cached_tokens
        wanted = self.cached_tokens // span.block_size * span.block_size if is_first else self.tokens_received
        if span.begin != wanted:
            return f"{at} came after {self.tokens_received} tokens"
        if span.end > self.prompt_tokens:
            return f"{at} came for a prompt of {self.prompt_tokens}"
        if span.end < self.prompt_tokens and span.end % span.block_size:
            return f"{at} ends inside a block of {span.block_size}, ahead of the prompt's end {self.prompt_tokens}"
        needed = -(-(span.end - span.begin) // span.block_size)
        if span.begin % span.block_size or span.num_blocks != needed:
            return f"{at} came in {span.num_blocks} blocks of {span.block_size}, expected {needed} whole ones"
        return ""

    def _settle(self) -> TakeoverActions:
        """What the end of a pull allows."""
        if self._pulls:
            return ()
        if self.state is TakeoverState.LANDING:
            self.state = TakeoverState.STARTED
            return (Start(),)
        if self.state is TakeoverState.ENDING:
            self.state = TakeoverState.ENDED
            return (FreeBlocks(),)
        return ()

    def _end(self, kind: type[TriptychError] | None = None, reason: str = "") -> TakeoverActions:
        self.state = TakeoverState.ENDING
        refusal = (Refuse(kind, reason),) if kind is not None else ()
        return (*refusal, *map(DropPull, self._pulls), *self._settle())
