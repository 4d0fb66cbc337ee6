"""Errors of /v1/messages in Anthropic's shape: a layer around all the others."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MESSAGES_PATH = "/v1/messages"

_TYPE_BY_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_TYPE_BY_OPENAI = {
    "invalid_request_error": "invalid_request_error",
    "authentication_error": "authentication_error",
    "rate_limit_error": "rate_limit_error",
    "permission_error": "permission_error",
}


def anthropic_error(body: Mapping[str, Any], status: int = 0) -> dict[str, Any]:
    """An error of ours, reworded. There is no field for the part at fault; it is in the message."""
    error = body["error"]
    kind = _TYPE_BY_STATUS.get(status) or _TYPE_BY_OPENAI.get(error["type"], "api_error")
    message, param = error["message"], error["param"]
    if param and param not in message:
        message = f"{param}: {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


def is_anthropic(path: str) -> bool:
    return path == MESSAGES_PATH or path.startswith(MESSAGES_PATH + "/")


class AnthropicShape:
    """ASGI middleware for these paths alone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_anthropic(scope["path"]):
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _Rewording(send))


class _Rewording:
    """Holds an error back until its body is there."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if "x-request-id" in headers:
                headers["request-id"] = headers["x-request-id"]  # where Anthropic's clients look
            if message["status"] >= 400:
                self._start = message
                return
        elif self._start is not None:
            self._body += message.get("body", b"")
            if message.get("more_body", False):
                return
            await self._finish(self._start)
            return
        await self._send(message)

    async def _finish(self, start: Message) -> None:
        body = _reworded(self._body, start["status"])
        MutableHeaders(scope=start)["content-length"] = str(len(body))
        self._start = None
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


def _reworded(body: bytes, status: int) -> bytes:
    try:
        return json.dumps(anthropic_error(json.loads(body), status)).encode()
    except (ValueError, KeyError, TypeError):
        return body  # no error of ours: of a HEAD, or of somebody else's layer
