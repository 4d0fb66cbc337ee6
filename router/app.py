"""The HTTP surface over a `Router`: a short way for what generates, the framework for the rest."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from triptych.router.admin.discovery import add_discovery
from triptych.router.admin.embeddings import ACTIONS, EmbeddingsAdmin
from triptych.router.admin.probes import add_probes
from triptych.router.admin.scale_admin import ScaleAdmin
from triptych.router.admin.supervision import Supervision
from triptych.router.api.anthropic.errors import AnthropicShape
from triptych.router.api.models_list import add_models
from triptych.router.api.openapi import describe
from triptych.router.api.posts import post_endpoints
from triptych.router.edge.cors import with_cors
from triptych.router.edge.failures import nested
from triptych.router.edge.gate import Gate
from triptych.router.edge.layer import Edge, nested_response
from triptych.router.edge.sites import OF_ADMIN_PORT
from triptych.router.observe.timeline_pages import add_timelines
from triptych.router.page.feed import LiveFeed
from triptych.router.page.routes import add_page, is_of_page
from triptych.router.router import Router

_NO_EMBEDDINGS = "no embedding model is served here; this server generates text"


_PROBES = frozenset({"/health", "/ready", "/live", "/version"})
_OF_OPERATORS = frozenset({"/metrics", "/v1/cluster", "/v1/cluster/http_sd"})
_BELOW_OPERATORS = "/admin/"


@dataclass(frozen=True, slots=True)
class Apps:
    """main: its life is the router's. admin: for the admin port, if any. live: to be ended before a port closes"""

    main: ASGIApp
    admin: ASGIApp | None
    live: LiveFeed


def build_app(router: Router) -> ASGIApp:
    return build_apps(router).main


def build_apps(router: Router, supervision: Supervision | None = None) -> Apps:
    """supervision: by whom the workers are kept, if by anybody.

    Raises ConfigError for keys or a usage log that cannot be opened, and for traces without their packages.
    """
    settings = router.settings.router
    posts, gate = post_endpoints(router), Gate(router)
    edge_options: dict[str, Any] = {"metrics": router.metrics, "gate": gate}
    quick = Edge(_Table(posts), **edge_options)
    live = LiveFeed(router, gate)
    others = _build_others(router, gate, posts, edge_options, ScaleAdmin(router, supervision or Supervision()), live)
    missing = Edge(_missing, **edge_options)
    has_admin_port = settings.admin_port > 0

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = others
        if scope["type"] == "http":
            if scope["method"] == "POST" and scope["path"] in posts:
                app = quick
            elif has_admin_port and _is_of_operators(scope["path"]):
                app = missing
        await app(scope, receive, send)

    async def admin(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        scope.setdefault("state", {})[OF_ADMIN_PORT] = True
        is_here = path in _PROBES or _is_of_operators(path) or is_of_page(path)
        await (others if is_here else missing)(scope, receive, send)

    main = AnthropicShape(front)
    origins = settings.cors_origins
    return Apps(with_cors(main, origins) if origins else main, admin if has_admin_port else None, live)


def _is_of_operators(path: str) -> bool:
    return path in _OF_OPERATORS or path.startswith(_BELOW_OPERATORS)


async def _missing(scope: Scope, receive: Receive, send: Send) -> None:
    await _not_found(scope["path"])(scope, receive, send)


class _Table:
    """Endpoints by path; the path is one of them."""

    def __init__(self, endpoints: Mapping[str, ASGIApp]) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoints[scope["path"]](scope, receive, send)


def _build_others(
    router: Router,
    gate: Gate,
    posts: Mapping[str, ASGIApp],
    edge_options: Mapping[str, Any],
    scale: ScaleAdmin,
    live: LiveFeed,
) -> FastAPI:

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await router.start()
        gate.start()
        try:
            yield
        finally:
            await router.stop()
            await gate.stop()

    app = FastAPI(title="Triptych", version=version("triptych"), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(Edge, **edge_options)
    app.add_exception_handler(HTTPException, _http_error)
    add_models(app, router)
    add_probes(app, router)
    add_discovery(app, router)
    add_timelines(app, router.recent, lambda: gate.has_keys)
    _add_posts(app, posts)
    _add_admin(app, EmbeddingsAdmin(router, gate.has_key))
    _add_scale(app, scale)
    add_page(app, live)
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


def _add_scale(app: FastAPI, admin: ScaleAdmin) -> None:
    @app.get("/admin/scale", response_model=None)
    async def show(http: Request) -> dict[str, Any]:
        """Workers of each role, wanted and there"""
        return await admin.show(http)

    @app.post("/admin/scale", response_model=None)
    async def scale(http: Request) -> dict[str, Any]:
        """Change how many workers of each role there are"""
        return await admin.scale(http)

    @app.post("/admin/role", response_model=None)
    async def switch(http: Request) -> dict[str, Any]:
        """Let a worker make room for one of another role"""
        return await admin.switch(http)

    @app.get("/admin/reload", response_model=None)
    async def show_sets(http: Request) -> dict[str, Any]:
        """Sets of workers, each with its model, and how far a reload is"""
        return await admin.show(http)

    @app.post("/admin/reload", response_model=None)
    async def reload(http: Request) -> dict[str, Any]:
        """Serve another model, or the one before"""
        return await admin.reload(http)


async def _http_error(http: Request, error: Exception) -> Response:
    """Unknown routes and methods, in the shape of every other error."""
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 404:
        return _not_found(http.url.path)
    is_method = error.status_code == 405
    message = f"{http.method} is not allowed here" if is_method else str(error.detail)
    body = nested(message, "invalid_request_error", None, "method_not_allowed" if is_method else None)
    return nested_response(error.status_code, body, error.headers or {})


def _not_found(path: str) -> Response:
    message = _NO_EMBEDDINGS if path == "/v1/embeddings" else f"there is no {path[:200]!r} here"
    return nested_response(404, nested(message, "invalid_request_error", None, "not_found"), {})
