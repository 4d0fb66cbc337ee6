"""POST /v1/messages/count_tokens: the prompt is laid out as if it were asked, and nothing is generated."""

import asyncio
from functools import partial

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from triptych.router.api.anthropic.read import read_count
from triptych.router.edge.body import read_body, unless_gone
from triptych.router.edge.caller import caller_of
from triptych.router.observe.timeline import Timeline
from triptych.router.router import Router


class CountEndpoint:
    """Raises what /v1/messages would raise for the same prompt."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = HTTPRequest(scope, receive)
        response = JSONResponse({"input_tokens": await self._count(http)})
        await response(scope, receive, send)

    async def _count(self, http: HTTPRequest) -> int:
        router, limits = self._router, self._router.settings.router
        read = partial(read_count, most_images=limits.max_images_per_prompt)
        with router.budget.holding() as holding:
            body = await read_body(http, limits.max_body_bytes, limits.stage_timeout_seconds, holding)
            chat = await asyncio.get_running_loop().run_in_executor(router.threads.parsing, read, body.data)
            del body
            caller = caller_of(http.scope)
            prepared = await unless_gone(http.receive, router.prepare(chat, holding, Timeline(), caller))
        return prepared.layout.num_tokens
