"""A generated answer, whole or streamed, whatever API it is worded for."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from triptych.errors import TriptychError
from triptych.router.api.choices import Choices, Delta
from triptych.router.api.schema import Chat
from triptych.router.api.stream import AnswerStream, StreamForm
from triptych.router.api.usage import Usage, usage_of
from triptych.router.edge.body import Body, read_body, unless_gone
from triptych.router.edge.budget import Holding
from triptych.router.edge.caller import arrival_of, caller_of
from triptych.router.edge.failures import name_image
from triptych.router.edge.turnstile import Turn
from triptych.router.media.loader import waits_for_others
from triptych.router.observe.critical_path import server_timing
from triptych.router.observe.timeline import Timeline
from triptych.router.pipeline.request import Request
from triptych.router.router import Router, Run

Question = TypeVar("Question")

TIMELINE_HEADER = "x-triptych-timeline"


class AnswerForm(StreamForm, Protocol):
    """How one API words one answer, whole or in pieces. Made once the prompt is known."""

    def whole(self, wholes: Sequence[Delta], usage: Usage) -> Mapping[str, Any]:
        """The body: all that was said, one delta a choice."""


class GenerationEndpoint:
    """Errors known before the first token are raised, also for streams; the edge gives them their status."""

    def __init__(
        self,
        router: Router,
        parse: Callable[[bytes], Chat],
        form: Callable[[Chat, Request], AnswerForm],
    ) -> None:
        """parse: from a body to what is asked; it may run in a thread. Raises what the client has to change."""
        self._router = router
        self._parse = parse
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As an ASGI application of its own."""
        response = await self.answer(HTTPRequest(scope, receive))
        await response(scope, receive, send)

    async def answer(self, http: HTTPRequest) -> Response:
        router, timeline = self._router, Timeline(arrival_of(http.scope))
        with router.budget.holding() as of_body:
            with timeline.measure("receive"):
                body = await read_body_of(http, router, of_body)
            with timeline.measure("turn"):
                turn = await router.turnstile.enter()
            try:
                chat = await parse_question(body, router, self._parse, timeline)
                del body
                return await unless_gone(http.receive, self._begin(http, chat, timeline, of_body, turn))
            finally:
                turn.end()

    async def _begin(self, http: HTTPRequest, chat: Chat, timeline: Timeline, of_body: Holding, turn: Turn) -> Response:
        if waits_for_others(chat.messages):
            turn.end()
        run = await self._router.begin(chat, timeline, caller_of(http.scope), turn.end)
        chat.forget_messages()
        of_body.close()  # the images in it are the run's now
        return await self._answer(chat, run, http.headers.get(TIMELINE_HEADER) == "1")

    async def _answer(self, chat: Chat, run: Run, wants_timeline: bool) -> Response:
        request = run.request
        choices = Choices(
            request,
            run.model_set.detokenizer,
            self._router.metrics,
            chat.request.stops,
            bool(chat.request.logprobs),
            chat.make_parser,
        )
        run.completion_tokens = lambda: choices.completion_tokens
        try:
            form = self._form(chat, request)
            if chat.request.stream:
                tokens = await request.receive()
                return AnswerStream(
                    self._router,
                    run,
                    choices,
                    form,
                    tokens,
                    _timing(run, wants_timeline),
                    ends_with_timing=wants_timeline,
                )
            body = await whole_answer(request, choices, form)
        except BaseException as error:
            await run.close(error)
            if isinstance(error, TriptychError):
                name_image(error, request.prepared.image_params)
            raise
        await run.close()
        return JSONResponse(body, headers=_timing(run, wants_timeline))


async def read_question(
    http: HTTPRequest, router: Router, parse: Callable[[bytes], Question], of_body: Holding, timeline: Timeline
) -> Question:
    """What the body asks; `parse` runs in a thread where it may take long. Raises what the client has to change."""
    return await parse_question(await read_body_of(http, router, of_body), router, parse, timeline)


async def read_body_of(http: HTTPRequest, router: Router, of_body: Holding) -> Body:
    """The body, within the router's limits. Raises as `read_body`."""
    limits = router.settings.router
    return await read_body(http, limits.max_body_bytes, limits.stage_timeout_seconds, of_body)


async def parse_question(
    body: Body, router: Router, parse: Callable[[bytes], Question], timeline: Timeline
) -> Question:
    """What the body asks. Raises what the client has to change."""
    with timeline.measure("parse"):
        if body.is_quickly_parsed:
            return parse(body.data)
        return await asyncio.get_running_loop().run_in_executor(router.threads.parsing, parse, body.data)


async def whole_answer(request: Request, choices: Choices, form: AnswerForm) -> Mapping[str, Any]:
    """The body, once every choice has finished. Raises what ended the request early."""
    wholes = [Delta(index) for index in range(request.prepared.branches)]
    while tokens := await request.receive():
        for delta in choices.feed(tokens):
            wholes[delta.index].add(delta)
    return form.whole(wholes, usage_of(request, choices.completion_tokens))


def _timing(run: Run, wanted: bool) -> dict[str, str]:
    return {"server-timing": server_timing(run.request.timeline)} if wanted else {}
