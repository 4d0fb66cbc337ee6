"""The outermost layer of HTTP: request ids, keys, and a nested error for everything that goes wrong."""

import hmac
import logging
import re
import secrets
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triptych.errors import InternalError, TriptychError, Unauthorized
from triptych.metrics import RouterMetrics
from triptych.router.failures import error_body, error_headers, log_failure

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "x-request-id"
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_GUARDED = ("/v1/", "/tokenize", "/admin/")


class Edge:
    """ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp, metrics: RouterMetrics, api_key: str = "") -> None:
        self._app = app
        self._metrics = metrics
        self._api_key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await _Exchange(self, scope, receive, send).run()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises Unauthorized, and whatever the app does not answer itself."""
        if self._api_key and scope["path"].startswith(_GUARDED) and not self._has_key(Headers(scope=scope)):
            raise Unauthorized("the API key is missing or wrong")
        await self._app(scope, receive, send)

    def count(self, path: str, status: int) -> None:
        endpoint = path if path in _COUNTED else "other"
        self._metrics.count("triptych:requests_total", endpoint=endpoint, status=f"{status // 100}xx")

    def count_error(self, error: TriptychError) -> None:
        self._metrics.count("triptych:request_errors_total", error=type(error).__name__)

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode(), self._api_key)


_COUNTED = frozenset({"/v1/chat/completions", "/v1/models", "/health", "/metrics", "/tokenize", "/v1/cluster"})


class _Exchange:
    """One request and its response."""

    def __init__(self, edge: Edge, scope: Scope, receive: Receive, send: Send) -> None:
        self._edge = edge
        self._scope = scope
        self._receive = receive
        self._send = send
        told = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        self._id = told if _SANE_ID.fullmatch(told) else secrets.token_hex(16)
        self._started = False
        scope.setdefault("state", {})["request_id"] = self._id

    async def run(self) -> None:
        try:
            await self._edge.serve(self._scope, self._receive, self._pass_on)
        except TriptychError as error:
            await self._fail(error)
        except Exception as error:  # a bug of ours; the client still gets an answer, and the log the trace
            logger.exception("request %s to %s failed", self._id, self._scope["path"])
            await self._fail(InternalError(repr(error)))

    async def _pass_on(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            MutableHeaders(scope=message).append(REQUEST_ID_HEADER, self._id)
            self._edge.count(self._scope["path"], message["status"])
        await self._send(message)

    async def _fail(self, error: TriptychError) -> None:
        if self._started:
            raise error  # nothing can be added to a response; the server breaks the connection
        log_failure(self._id, error)
        self._edge.count_error(error)
        response = nested_response(error.http_status, error_body(error), error_headers(error))
        await response(self._scope, self._receive, self._pass_on)


def nested_response(status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> JSONResponse:
    return JSONResponse(body, status_code=status, headers=dict(headers))
