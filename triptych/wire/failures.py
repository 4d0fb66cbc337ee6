"""Errors across a call: in a reply, in the trailing metadata of a gRPC status, and what a bare status means to us."""

from typing import Any

import grpc

from triptych import errors
from triptych.errors import (
    ClusterError,
    DeadlineExceeded,
    InternalError,
    InvalidMedia,
    Overloaded,
    TriptychError,
    Unproven,
    WorkerLost,
)
from triptych.pb import common_pb2 as pb

FAILURE_METADATA = "triptych-failure-bin"


def failure_to_pb(error: TriptychError) -> pb.Failure:
    index = -1 if error.item_index is None else error.item_index
    code = error.media_code if isinstance(error, InvalidMedia) else error.code
    return pb.Failure(error=type(error).__name__, message=error.message, item_index=index, code=code)


def error_from_failure(message: pb.Failure) -> TriptychError:
    """The error a worker reported; a name this build does not know becomes a ClusterError."""
    kind = errors.ERROR_BY_NAME.get(message.error, ClusterError)
    if kind is TriptychError:
        kind = ClusterError
    index = None if message.item_index < 0 else message.item_index
    if kind is InvalidMedia:
        return InvalidMedia(message.message, item_index=index, code=message.code or "invalid_image")
    return kind(message.message, item_index=index)


def failure_trailer(error: TriptychError) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata that carries the whole error beside the gRPC status."""
    return ((FAILURE_METADATA, failure_to_pb(error).SerializeToString()),)


def status_code(error: TriptychError) -> grpc.StatusCode:
    return grpc.StatusCode[error.grpc_status]


def error_from_rpc(error: grpc.RpcError) -> TriptychError:
    """What a failed call means to us: the worker's own error when it sent one, else what the status implies."""
    trailers: Any = (error.trailing_metadata() or ()) if hasattr(error, "trailing_metadata") else ()
    for key, value in trailers:  # pairs, whether from grpc or from grpc.aio
        if key == FAILURE_METADATA and isinstance(value, bytes):
            return error_from_failure(pb.Failure.FromString(value))
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    detail = (error.details() if hasattr(error, "details") else str(error)) or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded("a worker did not answer in time")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Overloaded(f"a worker refused: {detail}")
    if code is grpc.StatusCode.UNAVAILABLE and _is_of_handshake(detail):
        return Unproven("a worker's address and this process do not prove to be of one cluster: serve.cluster_secret")
    # Sending over a connection that has just broken: grpc.aio tells that with these words, not with UNAVAILABLE.
    broke = code is grpc.StatusCode.INTERNAL and detail.startswith("Internal error from Core")
    if broke or code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return WorkerLost("a worker went away while it held the request")
    return InternalError(f"a worker failed: {code.name} {detail}")


def _is_of_handshake(detail: str) -> bool:
    """Whether a connection failed for what one end of it could not show; who is refused is told only of a close."""
    return "handshake failed" in detail or ("failed to connect" in detail and "Socket closed" in detail)
