"""For scripts of other sites' pages: off unless origins are named."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from triptych.router.edge.failures import nested
from triptych.router.edge.layer import REQUEST_ID_HEADER, nested_response, new_id

_TOLD = (
    *(REQUEST_ID_HEADER, "request-id", "retry-after", "x-should-retry", "server-timing"),
    *(f"x-ratelimit-{part}-{what}" for part in ("limit", "remaining", "reset") for what in ("requests", "tokens")),
)


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    return _Cors(app, allow_origins=origins, allow_methods=("GET", "POST"), allow_headers=("*",), expose_headers=_TOLD)


class _Cors(CORSMiddleware):
    """Its own answers, to questions whether one may ask, look like all others."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code >= 400:
            body = nested(bytes(response.body).decode(), "invalid_request_error", None, "cors_not_allowed")
            kept = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
            response = nested_response(response.status_code, body, kept)
        response.headers[REQUEST_ID_HEADER] = new_id()
        return response
