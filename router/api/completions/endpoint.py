"""POST /v1/completions: one run for each prompt, answered together."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from triptych.errors import Cancelled, TriptychError
from triptych.journey import Token
from triptych.router.api.answers import GenerationEndpoint
from triptych.router.api.choices import Choices, Delta
from triptych.router.api.completions.form import CompletionForm
from triptych.router.api.completions.read import CompletionChat, reader_of
from triptych.router.api.schema import Chat
from triptych.router.api.stream import written
from triptych.router.api.usage import Usage, usage_of
from triptych.router.edge.failures import error_body, log_failure
from triptych.router.observe.timeline import Timeline
from triptych.router.router import Router, Run
from triptych.router.tasks import all_or_first_error


@dataclass(slots=True)
class _Asked:
    """One prompt on its way."""

    run: Run
    choices: Choices
    form: CompletionForm
    first: Sequence[Token] = ()

    @property
    def usage(self) -> Usage:
        return usage_of(self.run.request, self.choices.completion_tokens)


class CompletionsEndpoint(GenerationEndpoint):
    """A single prompt goes the way of every other answer; here is what several take."""

    def __init__(self, router: Router) -> None:
        super().__init__(router, lambda body: reader_of(router.card, router.prompts)(body), CompletionForm)

    async def _answer(self, chat: Chat, run: Run, wants_timeline: bool) -> Response:
        if not isinstance(chat, CompletionChat) or not chat.others:
            return await super()._answer(chat, run, wants_timeline)
        all_asked = [self._asked(chat, run, None)]
        try:
            for other in chat.others:
                # Whoever asks waits from the same moment for all of them.
                arrived = Timeline(run.request.timeline.started_at)
                begun = await self._router.begin(other, arrived, run.caller, model_set=run.model_set)
                all_asked.append(self._asked(other, begun, all_asked[0].form))
            if chat.request.stream:
                await all_or_first_error(_begin(asked) for asked in all_asked)
                return _SeveralStream(self._router, all_asked)
            body = await _whole(all_asked)
        except BaseException as error:
            await _close(all_asked, error)
            raise
        await _close(all_asked, None)
        return JSONResponse(body)

    def _asked(self, chat: CompletionChat, run: Run, first: CompletionForm | None) -> _Asked:
        request, detokenizer = run.request, run.model_set.detokenizer
        wants_logprobs = bool(chat.request.logprobs)
        choices = Choices(request, detokenizer, self._router.metrics, chat.request.stops, wants_logprobs)
        run.completion_tokens = lambda: choices.completion_tokens
        return _Asked(run, choices, CompletionForm(chat, request, first.head if first else None))


async def _begin(asked: _Asked) -> None:
    """Errors known before the first token of any are real statuses."""
    asked.first = await asked.run.request.receive()


async def _whole(all_asked: Sequence[_Asked]) -> object:
    wholes: dict[int, list[Delta]] = {}

    async def read(index: int, asked: _Asked) -> None:
        wholes[index] = [Delta(choice) for choice in range(asked.run.request.prepared.branches)]
        while tokens := await asked.run.request.receive():
            for delta in asked.choices.feed(tokens):
                wholes[index][delta.index].add(delta)

    await all_or_first_error(read(index, asked) for index, asked in enumerate(all_asked))
    choices = [choice for index, asked in enumerate(all_asked) for choice in asked.form.choices(wholes[index])]
    return all_asked[0].form.body(choices, _sum(all_asked))


async def _close(all_asked: Sequence[_Asked], error: BaseException | None) -> None:
    for asked in all_asked:
        await asked.run.close(error)


def _sum(all_asked: Sequence[_Asked]) -> Usage:
    usages = [asked.usage for asked in all_asked]
    return Usage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.image_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
    )


class _SeveralStream(Response):
    """Events of several prompts, as they come; owns their runs."""

    media_type = "text/event-stream"

    def __init__(self, router: Router, all_asked: Sequence[_Asked]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._router = router
        self._all_asked = all_asked
        self._patience_seconds = router.settings.router.stage_timeout_seconds
        self._writing = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error: BaseException | None = Cancelled("the client left")
        try:
            error = await written(self._write(scope, send), receive, self._router.metrics)
        except Exception as bug:
            error = bug
            raise
        finally:
            await _close(self._all_asked, error)

    async def _write(self, scope: Scope, send: Send) -> TriptychError | None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        form = self._all_asked[0].form
        failed: TriptychError | None = None
        try:
            await all_or_first_error(self._tell(asked, send) for asked in self._all_asked)
            last = form.end(_sum(self._all_asked))
        except TriptychError as error:
            failed = error
            log_failure(scope["state"]["request_id"], error)
            last = form.error(error_body(error))
        await self._send(send, last, more=False)
        return failed

    async def _tell(self, asked: _Asked, send: Send) -> None:
        tokens = asked.first
        while tokens:
            deltas = asked.choices.feed(tokens)
            await self._send(send, asked.form.frames(deltas, _sum(self._all_asked)))
            asked.run.request.timeline.respond()
            tokens = await asked.run.request.receive()

    async def _send(self, send: Send, frames: str, more: bool = True) -> None:
        """Raises TimeoutError for a client that keeps the connection and does not read."""
        async with self._writing:
            if frames or not more:
                async with asyncio.timeout(self._patience_seconds):
                    await send({"type": "http.response.body", "body": frames.encode(), "more_body": more})
