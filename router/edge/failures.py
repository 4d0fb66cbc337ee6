"""Errors as HTTP tells them: always `{"error": {message, type, param, code}}`."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from triptych.errors import (
    BodyTooLarge,
    ClaimExpired,
    ClusterError,
    FingerprintMismatch,
    HeadTooLarge,
    HostNotAllowed,
    InternalError,
    InvalidMedia,
    InvalidRecord,
    LayoutMismatch,
    MalformedRequest,
    OriginNotAllowed,
    Overloaded,
    PermissionDenied,
    RateLimited,
    TooManyConnections,
    TransferFailed,
    TriptychError,
    Unauthorized,
    WorkerLost,
)
from triptych.metrics import RouterMetrics

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 1
_LONGEST_RETRY_AFTER_SECONDS = 60  # clients that are told more give up, or come back at once

# Their messages speak of addresses, paths and digests inside the cluster.
_INSIDE = (ClaimExpired, FingerprintMismatch, LayoutMismatch, TransferFailed, WorkerLost)

# Why a request was refused at the door, by the class of its error.
_REASONS: Mapping[type[TriptychError], str] = {
    Unauthorized: "key",
    PermissionDenied: "role",
    OriginNotAllowed: "site",
    HostNotAllowed: "site",
    RateLimited: "limit",
    BodyTooLarge: "body",
    HeadTooLarge: "head",
    MalformedRequest: "malformed",
    TooManyConnections: "connections",
    Overloaded: "overload",
}


def count_failure(metrics: RouterMetrics, error: TriptychError) -> None:
    """Of a request, or of what never became one."""
    metrics.count("triptych:request_errors_total", error=type(error).__name__)
    reason = _REASONS.get(type(error))
    if reason is not None:
        metrics.count("triptych:rejected_requests_total", reason=reason)


def error_body(error: TriptychError) -> dict[str, Any]:
    """What the client reads; what is a bug of ours is for the log alone."""
    if isinstance(error, InternalError | InvalidRecord):
        return nested("internal error", "server_error", None, InternalError.code)
    code = error.media_code if isinstance(error, InvalidMedia) else error.code
    if isinstance(error, _INSIDE):
        return nested("the cluster could not finish the request; try again", "server_error", error.param, code)
    return nested(_message(error), _type(error), error.param, code)


def nested(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_headers(error: TriptychError, room_seconds: float = RETRY_AFTER_SECONDS) -> Mapping[str, str]:
    """room_seconds: when there may be room again, for errors that do not know better

    Clients judge by the status alone whether to try again, which sends bodies of many megabytes: 429 and all of 5xx,
    unless they are told.
    """
    headers = {"x-should-retry": "true" if error.retryable else "false"}
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.http_status in (429, 503):
        seconds = room_seconds if error.retry_after_seconds is None else error.retry_after_seconds
        headers["retry-after"] = str(min(_LONGEST_RETRY_AFTER_SECONDS, max(1, math.ceil(seconds))))
    return headers


def name_image(error: TriptychError, params: Sequence[str]) -> None:
    """Tells an error about an item which field of the request the item came from.

    params: dotted path of each item's image
    """
    if error.item_index is not None and error.item_index < len(params):
        error.param = error.param or params[error.item_index]


def log_failure(request_id: str, error: TriptychError) -> None:
    if isinstance(error, ClusterError | InvalidRecord):
        logger.warning("request %s failed with %s: %s", request_id, type(error).__name__, error)


def _message(error: TriptychError) -> str:
    return error.message if error.item_index is None else f"image {error.item_index}: {error.message}"


def _type(error: TriptychError) -> str:
    if isinstance(error, Unauthorized):
        return "authentication_error"
    if isinstance(error, PermissionDenied | OriginNotAllowed | HostNotAllowed):
        return "permission_error"
    if isinstance(error, Overloaded | RateLimited):
        return "rate_limit_error"
    return "server_error" if isinstance(error, ClusterError) else "invalid_request_error"
