"""The endpoints that take JSON, past the framework, whose layers cost more than the rest of a short request's way."""

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from triptych.errors import TriptychError, WrongContentType
from triptych.router.api.answers import GenerationEndpoint
from triptych.router.api.anthropic.count import CountEndpoint
from triptych.router.api.anthropic.form import MessageForm
from triptych.router.api.anthropic.read import read_message
from triptych.router.api.chat import chat_endpoint
from triptych.router.api.completions.endpoint import CompletionsEndpoint
from triptych.router.api.responses.form import ResponseForm
from triptych.router.api.responses.read import read_response
from triptych.router.api.tokenize import DetokenizeEndpoint, TokenizeEndpoint
from triptych.router.router import Router

CHAT_PATH = "/v1/chat/completions"


def post_endpoints(router: Router) -> Mapping[str, ASGIApp]:
    """By path. Errors are raised; the edge words them."""
    most_images = router.settings.router.max_images_per_prompt
    responses = GenerationEndpoint(router, lambda body: read_response(body, most_images), ResponseForm)
    messages = GenerationEndpoint(router, lambda body: read_message(body, most_images), MessageForm)
    completions = CompletionsEndpoint(router)
    endpoints: dict[str, ASGIApp] = {
        CHAT_PATH: chat_endpoint(router),
        "/v1/completions": Renamed(completions, {"messages": "prompt"}),
        "/v1/responses": Renamed(responses, {"messages": "input", "max_tokens": "max_output_tokens"}),
        "/v1/messages": messages,
        "/v1/messages/count_tokens": CountEndpoint(router),
        "/tokenize": TokenizeEndpoint(router),
        "/detokenize": DetokenizeEndpoint(router),
    }
    return {path: JSONOnly(endpoint) for path, endpoint in endpoints.items()}


class JSONOnly:
    """Refuses a body that says it is something else; most tools that say nothing mean JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = Headers(scope=scope).get("content-type", "")
        kind = named.partition(";")[0].strip().lower()
        if kind and kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
            raise WrongContentType(f"the content type is {kind[:60]!r}, expected 'application/json'")
        await self._app(scope, receive, send)


class Renamed:
    """Errors about a field that has another name in a chat request, where most are found."""

    def __init__(self, app: ASGIApp, names: Mapping[str, str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except TriptychError as error:
            error.param = self._names.get(error.param or "", error.param)
            raise
