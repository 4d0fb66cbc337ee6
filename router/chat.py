"""POST /v1/chat/completions: one answer, whole or streamed."""

import asyncio

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from triptych.errors import TriptychError
from triptych.router.body import Body, read_body, unless_gone
from triptych.router.choices import Choices
from triptych.router.completion import CompletionHead, whole_completion
from triptych.router.failures import name_image
from triptych.router.router import Router, Run
from triptych.router.schema import Chat, ChatRequest
from triptych.router.stream import ChatStream
from triptych.router.timeline import Timeline

TIMELINE_HEADER = "x-triptych-timeline"


class ChatEndpoint:
    """Errors known before the first token are raised, also for streams; the edge gives them their status."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As an ASGI application of its own."""
        response = await self.answer(HTTPRequest(scope, receive))
        await response(scope, receive, send)

    async def answer(self, http: HTTPRequest) -> Response:
        router, timeline = self._router, Timeline()
        limits = router.settings.router
        with router.budget.holding() as of_body:
            body = await read_body(http, limits.max_body_bytes, limits.stage_timeout_seconds, of_body)
            with timeline.measure("parse"):
                chat = await self._parse(body)
            del body
            run = await unless_gone(http, router.begin(chat, timeline))
        wants_timeline = http.headers.get(TIMELINE_HEADER) == "1"
        return await unless_gone(http, self._answer(chat.request, run, wants_timeline))

    async def _parse(self, body: Body) -> Chat:
        most_images = self._router.settings.router.max_images_per_prompt
        if body.is_quickly_parsed:
            return Chat.parse(body.data, most_images)
        threads = self._router.threads.parsing
        return await asyncio.get_running_loop().run_in_executor(threads, Chat.parse, body.data, most_images)

    async def _answer(self, chat: ChatRequest, run: Run, wants_timeline: bool) -> Response:
        request = run.request
        logprobs, token_ids = bool(chat.logprobs), bool(chat.return_token_ids)
        choices = Choices(request, self._router.detokenizer, self._router.metrics, chat.stops, logprobs)
        head = CompletionHead.of(request.id, chat.model)
        try:
            if chat.stream:
                tokens = await request.receive()
                return ChatStream(self._router, run, choices, chat, head, tokens, _timing(run, wants_timeline))
            body = await whole_completion(request, choices, head, token_ids=token_ids, logprobs=logprobs)
        except BaseException as error:
            await run.close()
            if isinstance(error, TriptychError):
                name_image(error, request.prepared.image_params)
            raise
        await run.close()
        return JSONResponse(body, headers=_timing(run, wants_timeline))


def _timing(run: Run, wanted: bool) -> dict[str, str]:
    return {"server-timing": run.request.timeline.server_timing()} if wanted else {}
