"""POST /v1/completions: one run for each prompt, answered together."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import JSONResponse, Response
from starlette.types import Scope, Send

from triptych.errors import TriptychError
from triptych.journey import Token
from triptych.router.api.answers import GenerationEndpoint
from triptych.router.api.choices import Choices, Delta
from triptych.router.api.completions.form import CompletionForm
from triptych.router.api.completions.read import CompletionChat, reader_of
from triptych.router.api.schema import Chat
from triptych.router.api.stream import EventStream
from triptych.router.api.usage import Usage, usage_of
from triptych.router.edge.failures import error_body
from triptych.router.observe.timeline import Timeline
from triptych.router.router import Router, Run, close_all
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
            await close_all(_runs(all_asked), error)
            raise
        await close_all(_runs(all_asked))
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


def _runs(all_asked: Sequence[_Asked]) -> Sequence[Run]:
    return [asked.run for asked in all_asked]


def _sum(all_asked: Sequence[_Asked]) -> Usage:
    usages = [asked.usage for asked in all_asked]
    return Usage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.image_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
    )


class _SeveralStream(EventStream):
    """Of several prompts, as their events come; owns their runs."""

    def __init__(self, router: Router, all_asked: Sequence[_Asked]) -> None:
        super().__init__(router, {})
        self._all_asked = all_asked
        self._form = all_asked[0].form
        self._writing = asyncio.Lock()

    async def _tell(self, scope: Scope, send: Send) -> str:
        await all_or_first_error(self._tell_one(asked, send) for asked in self._all_asked)
        return self._form.end(_sum(self._all_asked))

    def _failed(self, error: TriptychError) -> str:
        return self._form.error(error_body(error))

    async def _close(self, error: BaseException | None) -> None:
        await close_all(_runs(self._all_asked), error)

    async def _tell_one(self, asked: _Asked, send: Send) -> None:
        tokens = asked.first
        while tokens:
            frames = asked.form.frames(asked.choices.feed(tokens), _sum(self._all_asked))
            async with self._writing:
                await self._send(send, frames.encode())
            asked.run.request.timeline.respond()
            tokens = await asked.run.request.receive()
