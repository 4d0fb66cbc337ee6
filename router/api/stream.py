"""A streamed answer: what each step brings is on the socket before the call that brought it returns."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from triptych.errors import Cancelled, TriptychError
from triptych.journey import Token
from triptych.router.api.choices import Choices, Delta
from triptych.router.api.usage import Usage, usage_of
from triptych.router.edge.body import unless_gone
from triptych.router.edge.connection import ChunkWay, chunk_way
from triptych.router.edge.failures import error_body, log_failure, name_image
from triptych.router.observe.critical_path import server_timing
from triptych.router.pipeline.request import Request
from triptych.router.router import Router, Run


class StreamForm(Protocol):
    """How one API words one answer that comes in pieces: server-sent events, as text."""

    def frames(self, deltas: Sequence[Delta], usage: Usage) -> str:
        """For what some tokens added; maybe none."""

    def end(self, usage: Usage) -> str:
        """The last ones, where every choice has finished."""

    def error(self, body: Mapping[str, Any]) -> str:
        """The last ones of a stream that failed; body: the error as `error_body` words it."""


class EventStream(Response, ABC):
    """Server-sent events; owns what it answers, and closes that however it ends."""

    media_type = "text/event-stream"

    def __init__(self, router: Router, headers: Mapping[str, str]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._metrics = router.metrics
        self._patience_seconds = router.settings.router.stage_timeout_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error: BaseException | None = Cancelled("the client left")
        try:
            error = await self._written(receive, self._write(scope, send))
        except Exception as bug:
            error = bug
            raise
        finally:
            await self._close(error)

    async def _written(
        self, receive: Receive, writing: Coroutine[Any, Any, TriptychError | None]
    ) -> TriptychError | None:
        """What the answer failed with while it was written, which is counted: its status has told success already.

        Cancelled where its client has left, or stopped reading.
        """
        try:
            failed = await unless_gone(receive, writing)
        except Cancelled as error:
            failed = error
        except (OSError, TimeoutError):
            failed = Cancelled("the client left, or has stopped reading")
        if failed is not None:
            self._metrics.count("triptych:request_errors_total", error=type(failed).__name__)
        return failed

    async def _write(self, scope: Scope, send: Send) -> TriptychError | None:
        """The whole response; what the request failed with."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        failed: TriptychError | None = None
        try:
            last = await self._tell(scope, send)
        except TriptychError as error:
            failed = error
            last = self._failed(error)
            log_failure(scope["state"]["request_id"], error)
        await self._send(send, last.encode(), more=False)
        return failed

    async def _send(self, send: Send, frames: bytes, more: bool = True) -> None:
        """Raises TimeoutError for a client that keeps the connection and does not read."""
        if frames or not more:
            async with asyncio.timeout(self._patience_seconds):
                await send({"type": "http.response.body", "body": frames, "more_body": more})

    @abstractmethod
    async def _tell(self, scope: Scope, send: Send) -> str:
        """Sends all events but the last, and returns that. Raises TriptychError for what has failed meanwhile."""

    @abstractmethod
    def _failed(self, error: TriptychError) -> str:
        """The last event of a stream that failed so."""

    @abstractmethod
    async def _close(self, error: BaseException | None) -> None:
        """Ends what the answer is of; error: what it failed with."""


class AnswerStream(EventStream):
    """Of a request whose first tokens are there; owns its run."""

    def __init__(
        self,
        router: Router,
        run: Run,
        choices: Choices,
        form: StreamForm,
        tokens: Sequence[Token],
        headers: Mapping[str, str],
        *,
        ends_with_timing: bool = False,
    ) -> None:
        """ends_with_timing: a comment tells, before the last events, where the time went"""
        super().__init__(router, headers)
        self._run = run
        self._choices = choices
        self._form = form
        self._tokens = tokens
        self._ends_with_timing = ends_with_timing

    async def _tell(self, scope: Scope, send: Send) -> str:
        way = chunk_way(scope)
        if way is not None:
            await TokenPump(self._run.request, way, self._frames, self._patience_seconds).run(self._tokens)
        else:
            await self._by_messages(send)
        return self._timing() + self._form.end(self._usage())

    def _failed(self, error: TriptychError) -> str:
        name_image(error, self._run.request.prepared.image_params)
        return self._form.error(error_body(error))

    async def _close(self, error: BaseException | None) -> None:
        await self._run.close(error)

    async def _by_messages(self, send: Send) -> None:
        """For a server that is not ours, and clients that do not take chunks."""
        request, tokens = self._run.request, self._tokens
        while tokens:
            await self._send(send, self._frames(tokens))
            tokens = await request.receive()

    def _frames(self, tokens: Sequence[Token]) -> bytes:
        frames = self._form.frames(self._choices.feed(tokens), self._usage()).encode()
        self._run.request.timeline.respond()
        return frames

    def _timing(self) -> str:
        return f": server-timing {server_timing(self._run.request.timeline)}\n\n" if self._ends_with_timing else ""

    def _usage(self) -> Usage:
        return usage_of(self._run.request, self._choices.completion_tokens)


class TokenPump:
    """From a request to its client, without a task that wakes for every token.

    Tokens that come while the client does not read wait in the request, and go out together once it does.
    """

    def __init__(
        self,
        request: Request,
        way: ChunkWay,
        frames: Callable[[Sequence[Token]], bytes],
        patience_seconds: float,
    ) -> None:
        """frames: what some tokens are to the client, maybe nothing"""
        self._request = request
        self._way = way
        self._frames = frames
        self._patience_seconds = patience_seconds
        self._look = asyncio.Event()  # something for `run` to do: the end, an error, a client that does not read
        self._blocked = False
        self._over = False
        self._error: Exception | None = None

    async def run(self, first: Sequence[Token]) -> None:
        """Writes the first tokens and all that follow; returns at the end.

        Raises what ended the request early, and TimeoutError for a client that keeps the connection and does not read.
        """
        try:
            self._write(first)
            self._request.listen(self._heard)
            self._heard()  # what has come since the first tokens
            while not self._over:
                await self._look.wait()
                self._look.clear()
                if self._blocked:
                    await self._unblock()
        finally:
            self._over = True
        if self._error is not None:
            raise self._error

    async def _unblock(self) -> None:
        async with asyncio.timeout(self._patience_seconds):
            await self._way.drained()
        self._blocked = False
        self._heard()

    def _heard(self) -> None:
        """Called by whoever delivers tokens, who must not suffer from what goes wrong here."""
        if self._blocked or self._over:
            return
        try:
            while not self._blocked and (tokens := self._request.take()):
                self._write(tokens)
        except Exception as error:
            self._error, self._over = error, True
        if self._request.has_ended and not self._blocked:
            self._over = True
        if self._over:
            self._look.set()

    def _write(self, tokens: Sequence[Token]) -> None:
        frames = self._frames(tokens)
        if frames and not self._way.write(frames):
            self._blocked = True
            self._look.set()
