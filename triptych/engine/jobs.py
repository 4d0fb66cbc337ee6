"""What the engine is asked to do, and whom it tells: the vocabulary of its public methods."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from triptych.errors import Cancelled, ContextTooLong, InvalidRequest, LayoutMismatch, TriptychError
from triptych.journey import BlockRef, Layout, RequestId, Token
from triptych.sampling import MOST_BRANCHES, Sampling
from triptych.stages import StageSpan


@dataclass(frozen=True, slots=True, eq=False)
class PrefillJob:
    """One prompt to compute.

    generated: tokens that were produced already, when a lost request is continued (then branches is 1); they follow
               the prompt as text, and counting of token positions goes on behind them
    choice:    choice index of the first branch
    deadline:  on time.monotonic
    keep_kv:   False where nobody will decode: no KV is announced
    kv_begin:  so many tokens' KV is where the prompt will be decoded; blocks that hold nothing behind are not announced
    cache_salt: KV is shared only with prompts of the same salt
    """

    request_id: RequestId
    attempt: int
    layout: Layout
    sampling: Sampling
    branches: int = 1
    choice: int = 0
    generated: tuple[int, ...] = ()
    deadline: float = math.inf
    keep_kv: bool = True
    kv_begin: int = 0
    cache_salt: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeJob:
    """A prompt whose KV has landed in the request's reserved blocks, to be continued.

    first: what prefill sampled, one token per branch; a branch whose token carries a finish reason is not decoded
    """

    request_id: RequestId
    attempt: int
    layout: Layout
    sampling: Sampling
    branches: int = 1
    choice: int = 0
    generated: tuple[int, ...] = ()
    first: tuple[Token, ...] = ()
    deadline: float = math.inf

    @property
    def stems(self) -> list[tuple[int, ...]]:
        """What the branches that go on have said."""
        return [(*self.generated, token.id) for token in self.first if not token.finish_reason]


@dataclass(frozen=True, slots=True)
class Reserved:
    """Blocks for all that a request may need, of which the first hold the KV of so many tokens already."""

    num_blocks: int
    cached_tokens: int = 0  # whole blocks; at least one token of the prompt is behind them


@dataclass(frozen=True, slots=True)
class Window:
    """Items of a prompt whose landing rows are reserved together; each prompt is granted at least one, maybe empty."""

    items: tuple[int, ...]  # indices, ascending
    cached_tokens: int = 0  # of the whole prompt, whose KV was there already; the same in every window
    last: bool = True  # no window follows


class PrefillSink(Protocol):
    """Whom a prefill reports to, on the engine's thread; must not block. The order is as listed.

    A method that raises ends its request with InternalError; shares of blocks it was being handed count as refused.
    """

    def granted(self, window: Window) -> None:
        """Blocks, and the window's landing rows, are reserved: its rows may be read into `landing()` from now on.

        Called once per window, the first before all other news; items in no window are not needed.
        """

    def kv_ready(self, blocks: tuple[BlockRef, ...], tokens_begin: int, tokens_end: int, last: bool) -> None:
        """Blocks that hold the KV of these tokens; one share of each is the sink's until `release_blocks`.

        Called right behind the launch of the work that fills them, in the order of that work on the device: an event
        recorded now, on the current stream, completes when they are filled.
        """

    def first_tokens(self, tokens: tuple[Token, ...], times: Sequence[StageSpan]) -> None:
        """The end: one token per branch, and when the prompt was in each stage."""

    def failed(self, error: TriptychError) -> None:
        """The end, at any moment: everything but shared-out blocks has been freed."""


class DecodeSink(Protocol):
    """Whom decoded tokens go to, on the engine's thread; must not block. Usually one per router, for all its requests.

    A method that raises ends the requests it was called about: a stream with a hole would be a wrong answer.
    """

    def tokens(self, batch: Sequence[tuple[RequestId, int, Token]]) -> None:
        """All tokens one step has made for this sink: request, attempt, token. The last of a branch has a reason."""

    def waiting(self, request_id: RequestId, attempt: int) -> None:
        """The request makes room for others, and is not forgotten; told every few seconds for as long as that lasts."""

    def failed(self, request_id: RequestId, attempt: int, error: TriptychError) -> None:
        """The request has ended without its finish reason, and everything it held is free."""


def require_newer(held: int, attempt: int) -> None:
    """Raises Cancelled for an attempt that is not newer than the one already here."""
    if attempt <= held:
        raise Cancelled(f"attempt {attempt} comes too late, attempt {held} of this request is here")


def check_prefill(job: PrefillJob, vocab_size: int, max_model_len: int) -> None:
    """Raises the RequestError or LayoutMismatch that says what cannot be computed."""
    check_branches(job.branches, job.choice)
    _check_tokens(job, vocab_size)
    if job.generated and job.branches != 1:
        raise InvalidRequest(f"{job.branches} branches with {len(job.generated)} generated tokens, expected 1 branch")
    total = job.layout.num_tokens + len(job.generated)
    if total >= max_model_len:
        raise ContextTooLong(f"the prompt has {total} tokens, the context takes {max_model_len - 1} and an answer")
    if not 0 <= job.kv_begin < total:
        raise InvalidRequest(f"KV is wanted from token {job.kv_begin} on, the prompt has {total}")
    if len(job.generated) >= job.sampling.max_tokens:
        raise InvalidRequest(f"{len(job.generated)} tokens are generated, max_tokens is {job.sampling.max_tokens}")


def check_decode(job: DecodeJob, vocab_size: int) -> None:
    """Raises the RequestError or LayoutMismatch that says what cannot be continued."""
    check_branches(job.branches, job.choice)
    _check_tokens(job, vocab_size)
    if len(job.first) != job.branches:
        raise LayoutMismatch(f"{len(job.first)} first tokens came for {job.branches} branches")
    for token in job.first:
        if token.position != len(job.generated):
            raise LayoutMismatch(f"first token has position {token.position}, {len(job.generated)} came before it")
        _check_ids("first token", (token.id,), vocab_size)


def check_branches(branches: int, first_choice: int = 0) -> None:
    """Raises InvalidRequest for branches that are no choices of any request."""
    if branches < 1 or not 0 <= first_choice <= MOST_BRANCHES - branches:
        raise InvalidRequest(f"{branches} branches from choice {first_choice}, a request has 1 to {MOST_BRANCHES}")


def _check_tokens(job: PrefillJob | DecodeJob, vocab_size: int) -> None:
    ids = job.layout.token_ids
    if not len(ids):
        raise InvalidRequest("the prompt is empty")
    _check_ids("prompt token", (int(ids.min()), int(ids.max())), vocab_size)
    _check_ids("generated token", job.generated, vocab_size)
    _check_ids("logit_bias token", tuple(job.sampling.logit_bias), vocab_size)
    _check_ids("stop token", job.sampling.stop_token_ids, vocab_size)


def _check_ids(what: str, ids: Sequence[int], vocab_size: int) -> None:
    # An id outside the vocabulary is an out-of-bounds read on the device, which takes the whole process with it.
    for id in ids:
        if not 0 <= id < vocab_size:
            raise InvalidRequest(f"{what} has id {id}, the vocabulary has {vocab_size}")
