"""POST /v1/chat/completions: one answer, whole or streamed."""

import asyncio
from collections.abc import Mapping, Sequence

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from triptych.errors import TriptychError
from triptych.journey import Token
from triptych.router.body import client_gone, read_body, unless_gone
from triptych.router.choices import Choices, Delta
from triptych.router.completion import CompletionHead, usage_of, whole_completion
from triptych.router.failures import error_body, log_failure
from triptych.router.router import Router, Run
from triptych.router.schema import Chat, ChatRequest
from triptych.router.sse import DONE, ChunkWriter, error_frame
from triptych.router.timeline import Timeline

_PARSE_IN_THREAD_BYTES = 16 << 10
TIMELINE_HEADER = "x-triptych-timeline"


class ChatEndpoint:
    """Errors known before the first token are raised, also for streams; the edge gives them their status."""

    def __init__(self, router: Router) -> None:
        self._router = router

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

    async def _parse(self, body: bytes) -> Chat:
        most_images = self._router.settings.router.max_images_per_prompt
        if len(body) < _PARSE_IN_THREAD_BYTES:
            return Chat.parse(body, most_images)
        threads = self._router.threads.parsing
        return await asyncio.get_running_loop().run_in_executor(threads, Chat.parse, body, most_images)

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
            raise _at_image(error, run) from None
        await run.close()
        return JSONResponse(body, headers=_timing(run, wants_timeline))


class ChatStream(Response):
    """Server-sent events for a request whose first tokens are there; owns the run."""

    media_type = "text/event-stream"

    def __init__(
        self,
        router: Router,
        run: Run,
        choices: Choices,
        chat: ChatRequest,
        head: CompletionHead,
        tokens: Sequence[Token],
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._router = router
        self._run = run
        self._choices = choices
        self._chat = chat
        self._tokens = tokens
        self._writer = ChunkWriter(
            head,
            run.request.prepared.branches,
            token_ids=bool(chat.return_token_ids),
            prompt_token_ids=run.request.prepared.layout.token_ids.tolist() if chat.return_token_ids else (),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._write(scope, send))
        gone = asyncio.ensure_future(client_gone(receive))
        try:
            await asyncio.wait({writing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        except (OSError, TimeoutError):
            pass  # the client left while we wrote, or has stopped reading
        finally:
            for task in (writing, gone):
                task.cancel()
            await asyncio.wait({writing, gone})
            await self._run.close()

    async def _write(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        request, tokens = self._run.request, self._tokens
        try:
            while tokens:
                await self._send(send, self._frames(self._choices.feed(tokens)).encode())
                tokens = await request.receive()
            if self._chat.includes_usage:
                usage = usage_of(request, self._choices.completion_tokens)
                await self._send(send, self._writer.usage(usage).encode())
            last = DONE
        except TriptychError as error:
            _at_image(error, self._run)
            log_failure(scope["state"]["request_id"], error)
            self._router.metrics.count("triptych:request_errors_total", error=type(error).__name__)
            last = error_frame(error_body(error))
        await self._send(send, last, more=False)

    async def _send(self, send: Send, frames: bytes, more: bool = True) -> None:
        """Raises TimeoutError for a client that keeps the connection and does not read."""
        if frames:
            async with asyncio.timeout(self._router.settings.router.stage_timeout_seconds):
                await send({"type": "http.response.body", "body": frames, "more_body": more})

    def _frames(self, deltas: Sequence[Delta]) -> str:
        usage = None
        if self._chat.continuous_usage:
            usage = usage_of(self._run.request, self._choices.completion_tokens)
        return "".join(self._writer.frames(delta, usage) for delta in deltas)


def _timing(run: Run, wanted: bool) -> dict[str, str]:
    return {"server-timing": run.request.timeline.server_timing()} if wanted else {}


def _at_image(error: BaseException, run: Run) -> BaseException:
    """Tells an error about an item which field of the request the item came from."""
    params = run.request.prepared.image_params
    if isinstance(error, TriptychError) and error.item_index is not None and error.item_index < len(params):
        error.param = error.param or params[error.item_index]
    return error
