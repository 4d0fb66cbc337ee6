"""The HTTP surface: routes, each a few lines, over a `Router`."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from triptych.errors import UnknownModel
from triptych.journey import Role
from triptych.router.admin import ACTIONS, EmbeddingsAdmin
from triptych.router.chat import ChatEndpoint
from triptych.router.edge import Edge, nested_response
from triptych.router.failures import nested
from triptych.router.router import Router
from triptych.router.tokenize import tokenize

CHAT_PATH = "/v1/chat/completions"


def build_app(router: Router) -> ASGIApp:
    """An application whose life is the router's: started with it, stopped with it.

    Chat requests go past the framework, whose layers cost more than the rest of a short request's way.
    """
    chat = ChatEndpoint(router)
    others = _build_others(router, chat)
    chats = Edge(chat, metrics=router.metrics, api_key=router.settings.router.api_key)

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        is_chat = scope["type"] == "http" and scope["path"] == CHAT_PATH and scope["method"] == "POST"
        await (chats if is_chat else others)(scope, receive, send)

    return front


def _build_others(router: Router, chat: ChatEndpoint) -> FastAPI:

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await router.start()
        try:
            yield
        finally:
            await router.stop()

    app = FastAPI(title="Triptych", version=version("triptych"), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(Edge, metrics=router.metrics, api_key=router.settings.router.api_key)
    app.add_exception_handler(HTTPException, _http_error)
    _add_models(app, router)
    _add_probes(app, router)
    _add_admin(app, EmbeddingsAdmin(router))

    @app.post(CHAT_PATH, response_model=None)
    async def chat_completions(http: Request) -> Response:
        return await chat.answer(http)  # for the description of the API, and for other methods to be refused

    @app.post("/tokenize", response_model=None)
    async def tokenize_text(http: Request) -> Response:
        return JSONResponse(await tokenize(http, router))

    return app


def _add_models(app: FastAPI, router: Router) -> None:
    created = int(time.time())

    def card() -> dict[str, Any]:
        return {
            "id": router.name,
            "object": "model",
            "created": created,
            "owned_by": "triptych",
            "root": router.name,
            "parent": None,
            "max_model_len": router.fleet.max_model_len(router.card.max_model_len),
        }

    @app.get("/v1/models", response_model=None)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card()]}

    @app.get("/v1/models/{model_id:path}", response_model=None)
    async def model(model_id: str) -> dict[str, Any]:
        if model_id != router.name:
            raise UnknownModel(f"the model {model_id[:100]!r} does not exist", param="model")
        return card()


def _add_probes(app: FastAPI, router: Router) -> None:
    @app.get("/health", response_model=None)
    async def health() -> Response:
        roles = {str(role): router.fleet.is_ready(role) for role in Role}
        healthy = all(roles.values())
        body = {"status": "ok" if healthy else "unavailable", "roles": roles}
        return JSONResponse(body, status_code=200 if healthy else 503)

    @app.get("/live", response_model=None)
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/version", response_model=None)
    async def tell_version() -> dict[str, str]:
        return {"version": version("triptych")}

    @app.api_route("/metrics", methods=["GET", "HEAD"], response_model=None)
    async def metrics() -> Response:
        return Response(router.expose_metrics(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/cluster", response_model=None)
    async def cluster() -> dict[str, Any]:
        return {"object": "cluster", "model": router.name, "workers": router.fleet.describe()}


def _add_admin(app: FastAPI, admin: EmbeddingsAdmin) -> None:
    @app.post("/admin/embeddings/warm", response_model=None)
    async def warm(http: Request) -> dict[str, Any]:
        return await admin.warm(http)

    @app.post("/admin/embeddings/{action}", response_model=None)
    async def control(http: Request, action: str) -> dict[str, Any]:
        if action not in ACTIONS:
            raise HTTPException(404)
        return await admin.control(http, action)


async def _http_error(http: Request, error: Exception) -> Response:
    """Unknown routes and methods, in the shape of every other error."""
    if not isinstance(error, HTTPException):
        raise error
    message = {404: f"there is no {http.url.path[:200]!r} here", 405: f"{http.method} is not allowed here"}
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    body = nested(message.get(error.status_code, str(error.detail)), "invalid_request_error", None, code)
    return nested_response(error.status_code, body, error.headers or {})
