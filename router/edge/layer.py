"""The outermost layer of HTTP: request ids, keys, limits, and a nested error for everything that goes wrong."""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triptych.errors import (
    BodyTooLarge,
    Cancelled,
    HeadTooLarge,
    InternalError,
    MalformedRequest,
    PermissionDenied,
    Stopping,
    TooManyConnections,
    TriptychError,
)
from triptych.logs import about
from triptych.metrics import RouterMetrics
from triptych.router.edge.account import Account
from triptych.router.edge.auth import Key
from triptych.router.edge.connection import FLAW_KEY
from triptych.router.edge.failures import count_failure, error_body, error_headers, log_failure
from triptych.router.edge.gate import Gate
from triptych.router.edge.limits import Meter
from triptych.router.observe import service_levels

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "x-request-id"
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_GUARDED = ("/v1/", "/tokenize", "/detokenize", "/admin/")
_OF_OPERATORS = ("/admin/", "/v1/cluster")
_CLASS_HEADER = service_levels.HEADER.encode()
_FOR_EACH_HIS_OWN = frozenset({"/v1/cluster/live"})  # tells whoever asks what he may see
_COUNTED = frozenset(
    {
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
        *("/v1/models", "/tokenize", "/detokenize", "/health", "/ready", "/live", "/version", "/metrics"),
        *("/admin/embeddings/warm", "/admin/embeddings/pin", "/admin/embeddings/unpin", "/admin/embeddings/clear"),
        *("/admin/scale", "/admin/role", "/admin/reload"),
        *("/", "/v1/cluster", "/v1/cluster/http_sd", "/v1/cluster/live"),
    }
)

_GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})

_CLOSING = (BodyTooLarge, HeadTooLarge, MalformedRequest, TooManyConnections)


class Edge:
    """ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp, metrics: RouterMetrics, gate: Gate) -> None:
        self.app = app
        self.metrics = metrics
        self.gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        await _Exchange(self, scope, receive, send).run()

    def count(self, path: str, status: int) -> None:
        endpoint = path if path in _COUNTED else "other"
        self.metrics.count("triptych:requests_total", endpoint=endpoint, status=f"{status // 100}xx")


class _Exchange:
    """One request and its response."""

    def __init__(self, edge: Edge, scope: Scope, receive: Receive, send: Send) -> None:
        self._edge = edge
        self._scope = scope
        self._receive = receive
        self._send = send
        told, self._key, self._told_class = _told_in(scope)
        self._id = told if _SANE_ID.fullmatch(told) else new_id()
        self._path: str = scope["path"]
        self._status = 0  # of the response, once it has started
        self._tenant = ""
        self._class = ""  # of service, where an answer is generated
        self._meter: Meter | None = None
        self._account = Account()
        self._began = time.monotonic()
        state = scope.setdefault("state", {})
        state["request_id"] = self._id
        state["account"] = self._account
        state["arrived"] = time.perf_counter()
        trace = state["trace"] = edge.gate.trace_of(scope)
        self._trace_id = trace.trace if trace is not None else ""

    async def run(self) -> None:
        about(self._id, self._trace_id)  # a request has a task of its own, so nothing has to be set back
        try:
            self._enter()
            await self._edge.app(self._scope, self._receive, self._pass_on)
        except TriptychError as error:
            await self._fail(error)
        except asyncio.CancelledError:
            if self._status:
                raise
            await self._fail(Stopping("the server is being stopped; try again"))
        except Exception as error:  # a bug of ours; the client still gets an answer, and the log the trace
            logger.exception("request %s to %.200r failed", self._id, self._path)
            await self._fail(InternalError(repr(error)))
        finally:
            self._leave()

    def _enter(self) -> None:
        """Raises what keeps the request from being looked at."""
        state, path, gate = self._scope["state"], self._path, self._edge.gate
        is_guarded, flaw = path.startswith(_GUARDED), state.get(FLAW_KEY)
        is_crowd = isinstance(flaw, TooManyConnections)
        if flaw is not None and (is_guarded or not is_crowd):  # whoever asks whether we live is answered in any crowd
            if is_crowd and path in _GENERATING:
                self._class = gate.class_in_a_crowd(self._key, self._told_class)
            raise flaw
        if not gate.has_keys:
            gate.sites.check(self._scope)
        if not is_guarded:
            return
        key: Key | None = None
        if gate.has_keys:
            of_operators = path.startswith(_OF_OPERATORS) and path not in _FOR_EACH_HIS_OWN
            key = gate.admit(self._key)
            state["tenant"] = self._tenant = key.tenant
            state["is_admin"] = key.is_admin
            if of_operators and not key.is_admin:
                raise PermissionDenied("this key may not ask what operators ask")
            if self._scope["method"] == "POST" and not of_operators:
                self._meter = gate.enter(key.tenant)
        if path in _GENERATING:
            state["service_class"] = self._class = gate.service_class(self._told_class, key.slo if key else "")

    def _leave(self) -> None:
        gate = self._edge.gate
        if self._meter is not None:
            gate.leave(self._meter, self._account)
        if self._scope["method"] == "POST" and self._path.startswith(_GUARDED):
            status = self._status or Cancelled.http_status
            endpoint = self._path if self._path in _COUNTED else "other"
            gate.write_down(self._tenant, self._id, self._trace_id, endpoint, status, self._account, self._began)

    async def _pass_on(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = list(message.get("headers", ()))
            headers.append((b"x-request-id", self._id.encode()))
            if self._meter is not None:
                headers += self._edge.gate.headers(self._meter)
            message["headers"] = headers
            self._edge.count(self._path, self._status)
        await self._send(message)

    async def _fail(self, error: TriptychError) -> None:
        self._account.error = type(error).__name__
        count_failure(self._edge.metrics, error)
        if self._status:
            raise error  # nothing can be added to a response; the server breaks the connection
        log_failure(self._id, error)
        self._edge.gate.refused(self._class, self._account, error)
        headers = dict(error_headers(error, self._edge.gate.seconds_until_room()))
        if isinstance(error, _CLOSING):
            headers["connection"] = "close"
        response = nested_response(error.http_status, error_body(error), headers)
        await response(self._scope, self._receive, self._pass_on)


def new_id() -> str:
    return secrets.token_hex(16)


def nested_response(status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> JSONResponse:
    return JSONResponse(body, status_code=status, headers=dict(headers))


def _told_in(scope: Scope) -> tuple[str, bytes, str]:
    """The request's id, key and class of service, as the client tells them, else empty. The first of each counts."""
    request_id, key, other_key, service_class = "", b"", b"", ""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            request_id = request_id or value.decode("latin-1")
        elif name == b"authorization":
            scheme, _, rest = value.partition(b" ")
            if scheme.lower() == b"bearer":
                key = key or rest.strip()
        elif name == b"x-api-key":
            other_key = other_key or value.strip()
        elif name == _CLASS_HEADER:
            service_class = service_class or value.decode("latin-1").strip()
    return request_id, key or other_key, service_class
