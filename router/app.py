"""The HTTP surface over a `Router`: a short way for what generates, the framework for the rest."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from triptych.router.admin import ACTIONS, EmbeddingsAdmin
from triptych.router.anthropic.errors import AnthropicShape
from triptych.router.edge import Edge, nested_response
from triptych.router.failures import nested
from triptych.router.models_list import add_models
from triptych.router.openapi import describe
from triptych.router.posts import post_endpoints
from triptych.router.probes import add_probes
from triptych.router.router import Router

_NO_EMBEDDINGS = "no embedding model is served here; this server generates text"


def build_app(router: Router) -> ASGIApp:
    """An application whose life is the router's: started with it, stopped with it."""
    posts = post_endpoints(router)
    edge_options: dict[str, Any] = {"metrics": router.metrics, "api_key": router.settings.router.api_key}
    quick = Edge(_Table(posts), **edge_options)
    others = _build_others(router, posts, edge_options)

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        is_quick = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in posts
        await (quick if is_quick else others)(scope, receive, send)

    return AnthropicShape(front)


class _Table:
    """Endpoints by path; the path is one of them."""

    def __init__(self, endpoints: Mapping[str, ASGIApp]) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoints[scope["path"]](scope, receive, send)


def _build_others(router: Router, posts: Mapping[str, ASGIApp], edge_options: Mapping[str, Any]) -> FastAPI:

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await router.start()
        try:
            yield
        finally:
            await router.stop()

    app = FastAPI(title="Triptych", version=version("triptych"), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(Edge, **edge_options)
    app.add_exception_handler(HTTPException, _http_error)
    add_models(app, router)
    add_probes(app, router)
    _add_posts(app, posts)
    _add_admin(app, EmbeddingsAdmin(router))
    app.openapi = describe(app)  # type: ignore[method-assign]  # as the framework's manual has it
    return app


def _add_posts(app: FastAPI, posts: Mapping[str, ASGIApp]) -> None:
    """For the description of the API, and for other methods to be refused; `front` answers these itself."""

    async def unreachable(http: Request) -> Response:
        raise HTTPException(404)

    for path in posts:
        app.add_api_route(path, unreachable, methods=["POST"], response_model=None, name=path)


def _add_admin(app: FastAPI, admin: EmbeddingsAdmin) -> None:
    @app.post("/admin/embeddings/warm", response_model=None)
    async def warm(http: Request) -> dict[str, Any]:
        """Encode a chat request's images, generate nothing"""
        return await admin.warm(http)

    @app.post("/admin/embeddings/{action}", response_model=None)
    async def control(http: Request, action: str) -> dict[str, Any]:
        """Pin, unpin or clear embeddings"""
        if action not in ACTIONS:
            raise HTTPException(404)
        return await admin.control(http, action)


async def _http_error(http: Request, error: Exception) -> Response:
    """Unknown routes and methods, in the shape of every other error."""
    if not isinstance(error, HTTPException):
        raise error
    path = http.url.path
    missing = _NO_EMBEDDINGS if path == "/v1/embeddings" else f"there is no {path[:200]!r} here"
    message = {404: missing, 405: f"{http.method} is not allowed here"}
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    body = nested(message.get(error.status_code, str(error.detail)), "invalid_request_error", None, code)
    return nested_response(error.status_code, body, error.headers or {})
