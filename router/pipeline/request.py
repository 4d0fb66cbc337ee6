"""One call's journey: where it stands, what it has produced, how long it may take."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from triptych import wire
from triptych.errors import DeadlineExceeded, InternalError, InvalidRequest, TriptychError
from triptych.journey import Layout, Media, RequestId, Token
from triptych.pb import common_pb2
from triptych.router.observe.timeline import Timeline
from triptych.sampling import Sampling
from triptych.stages import Stage, check_move

_ENDS = (Stage.FINISHED, Stage.FAILED, Stage.CANCELLED)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A chat request made ready for the tiers."""

    layout: Layout
    media: tuple[Media, ...]
    sampling: Sampling
    branches: int  # n
    image_params: tuple[str, ...]  # by item: dotted path of the image in the client's JSON
    grammar_param: str = ""  # dotted path of what asks for the grammar, if there is one
    cache_salt: bytes = b""  # rows and KV are shared only between requests of the same salt
    checksums: bool = False  # whatever is handed over for it is summed up and checked
    priority: int = 0  # lower is served first where KV blocks are short


class Request:
    """Owned by one task of the pipeline, which moves it; one reader takes its tokens.

    The reader either waits for them in a task of its own (`receive`) or is called when there are some (`listen`, then
    `take`): at sixteen streams and a step every few milliseconds, waking a task for each is what costs most.
    """

    def __init__(self, request_id: RequestId, prepared: Prepared, timeline: Timeline) -> None:
        self.id = request_id
        self.prepared = prepared
        self.timeline = timeline
        self.stage = Stage.LAID_OUT
        self.moments = [(self.stage, time.perf_counter())]  # when it came to each stage; the last one is its end
        self.workers: dict[str, str] = {}  # by role: who was asked last; of several encoders, one
        self.generated: list[list[int]] = [[] for _ in range(prepared.branches)]  # token ids by choice
        self.prompt_tokens = prepared.layout.num_tokens
        self.image_tokens = prepared.layout.num_rows  # among them
        self.cached_tokens = 0  # and those whose KV was there already
        self.log_id = request_id.hex()  # as logs call it: what the client reads in x-request-id, if there is a client
        self.traceparent = ""  # for the workers
        self.cached_items = 0  # whose rows were there already, or being made for another request
        self.stopped_early = False  # the reader has seen enough of a choice that its worker still continues
        self.all_finished = asyncio.Event()
        self.on_placed: Callable[[], None] = lambda: None  # called once a prefill worker has been asked; idempotent
        self.delivered_at = 0.0  # when the latest tokens have come, on time.perf_counter
        self._begun = False  # the first tokens have come
        self._finished = [False] * prepared.branches
        self._unread: list[Token] = []
        self._news = asyncio.Event()
        self._heard: Callable[[], None] | None = None
        self._error: TriptychError | None = None
        self._touched_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._limit: asyncio.Timeout | None = None
        self._given_up: TriptychError | None = None

    def give_up(self, error: TriptychError) -> None:
        """Ends it with this error, where it is under way."""
        if self._limit is not None and not self._limit.expired() and not self.has_ended:
            self._given_up = error
            self._limit.reschedule(asyncio.get_running_loop().time())

    def move(self, stage: Stage) -> None:
        """Raises InvalidRecord for a move the journey does not allow."""
        check_move(self.stage, stage)
        self.stage = stage
        self.moments.append((stage, time.perf_counter()))
        self.touch()

    def touch(self) -> None:
        """Something of this request has moved on."""
        self._touched_at = time.monotonic()

    @functools.cached_property
    def layout_message(self) -> common_pb2.Layout:
        """The layout as every tier is told it; nobody changes it."""
        return wire.layout_to_pb(self.prepared.layout)

    @property
    def has_tokens(self) -> bool:
        return any(self.generated)

    def deliver(self, tokens: Sequence[Token]) -> None:
        """Hands tokens to the reader. Raises InternalError for a token that is missing or comes twice."""
        self.touch()
        self.delivered_at = time.perf_counter()
        if not self._begun and tokens:
            self._begun = True
            self.timeline.has_begun()
        for token in tokens:
            if not 0 <= token.choice < len(self.generated):
                raise InternalError(f"a token of choice {token.choice} came; there are {len(self.generated)}")
            if self._finished[token.choice]:
                continue  # the reader has seen a stop string; the worker does not know yet
            if token.position != len(self.generated[token.choice]):
                raise InternalError(
                    f"token {token.position} of choice {token.choice} came, "
                    f"expected {len(self.generated[token.choice])}"
                )
            self.generated[token.choice].append(token.id)
            self._unread.append(token)
            if token.finish_reason:
                self._finish(token.choice)
        self._tell()

    def stop_choice(self, choice: int) -> None:
        """For the reader: no more tokens of this choice are wanted."""
        if not self._finished[choice]:
            self.stopped_early = True
            self._finish(choice)

    def _finish(self, choice: int) -> None:
        self._finished[choice] = True
        if all(self._finished):
            self.all_finished.set()

    def end(self, stage: Stage, error: TriptychError | None = None) -> None:
        """The last move; the reader gets what is unread, then the error or the end."""
        self.move(stage)
        if isinstance(error, InvalidRequest) and error.param is None:  # workers know of no fields
            error.param = self.prepared.grammar_param or None
        self._error = error
        self._tell()

    @property
    def has_ended(self) -> bool:
        return self.stage in _ENDS

    async def receive(self) -> list[Token]:
        """The tokens since the last call, at least one; empty at the end. Raises what ended the request early."""
        while not self._unread and not self.has_ended:
            self._news.clear()
            await self._news.wait()
        return self.take()

    def listen(self, heard: Callable[[], None]) -> None:
        """From now on `heard` is called, on the event loop, whenever there are tokens or the end; it must not raise."""
        self._heard = heard

    def take(self) -> list[Token]:
        """The tokens since the last call, maybe none. Raises what ended the request early, behind its last tokens."""
        tokens, self._unread = self._unread, []
        if not tokens and self._error is not None:
            raise self._error
        return tokens

    def _tell(self) -> None:
        if self._heard is not None:
            self._heard()
        else:
            self._news.set()

    @asynccontextmanager
    async def time_limits(self, whole_seconds: float, stage_seconds: float) -> AsyncIterator[None]:
        """Raises DeadlineExceeded in the body when all of it, or any time without progress, takes too long, and what it
        was given up with."""
        loop = asyncio.get_running_loop()
        ends_at = time.monotonic() + whole_seconds
        self.touch()

        def look() -> None:
            left = min(ends_at, self._touched_at + stage_seconds) - time.monotonic()
            if left > 0:
                self._timer = loop.call_later(left, look)
            elif not limit.expired():
                limit.reschedule(loop.time())

        try:
            async with asyncio.timeout(None) as limit:
                self._limit = limit
                look()
                yield
        except TimeoutError:
            if self._given_up is not None:
                raise self._given_up from None
            raise DeadlineExceeded(f"the request took too long while {self.stage.replace('_', ' ')}") from None
        finally:
            self._limit = None
            if self._timer is not None:
                self._timer.cancel()
