"""The door of every rpc: who may enter, and how errors leave."""

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import grpc

from triptych import wire
from triptych.errors import (
    DeadlineExceeded,
    Draining,
    FingerprintMismatch,
    InternalError,
    InvalidRecord,
    TriptychError,
    WrongIncarnation,
)
from triptych.journey import RequestId
from triptych.logs import about
from triptych.pb import common_pb2 as pb

log = logging.getLogger(__name__)

Reply = TypeVar("Reply")
_DASHES = 3  # of a traceparent


class Door:
    """Checks envelopes against the worker behind it; closed to new work while draining.

    Belongs to the control loop, where no call is let in unseen between a look at `draining` and one at `num_inside`.
    """

    def __init__(self, incarnation: int, fingerprint: bytes, longest_lease_seconds: float) -> None:
        self.incarnation = incarnation
        self.fingerprint = fingerprint
        self.longest_lease_seconds = longest_lease_seconds
        self.draining = False
        self.num_inside = 0  # calls that bring or hold work, from their first message to their end

    @contextmanager
    def inside(self, envelope: pb.Envelope, *, new_work: bool) -> Iterator[None]:
        """A call that is let in, until it ends. Raises as `check` does, and Draining for new work while draining."""
        self.check(envelope)
        # Of this call's task and of what it starts: a call is a task of its own, so nothing has to be set back.
        about(envelope.log_id or envelope.request_id.hex(), trace_of(envelope.traceparent))
        log.debug("a call of attempt %d is let in", envelope.attempt)
        if new_work and self.draining:
            raise Draining("this worker takes no new work any more")
        self.num_inside += 1
        try:
            yield
        finally:
            self.num_inside -= 1

    def check(self, envelope: pb.Envelope) -> None:
        """Raises WrongIncarnation, FingerprintMismatch or DeadlineExceeded."""
        if envelope.worker_incarnation != self.incarnation:
            raise WrongIncarnation("this address now belongs to another worker process; look it up again")
        if envelope.model_fingerprint != self.fingerprint:
            raise FingerprintMismatch(
                f"the caller means model {envelope.model_fingerprint.hex()[:8]}, "
                f"this worker holds {self.fingerprint.hex()[:8]}"
            )
        if envelope.deadline_ms == 0:
            raise DeadlineExceeded("the request's time was up when it arrived")

    def lease_seconds(self, lease_ms: int) -> float:
        """The lease a caller gets: what it asks for, within what the owner is willing to wait for the dead.

        Raises InvalidRecord for none at all.
        """
        if lease_ms < 1:
            raise InvalidRecord("a claim needs a lease of at least a millisecond")
        return min(lease_ms / 1000, self.longest_lease_seconds)


def trace_of(traceparent: str) -> str:
    """The trace's id; empty where there is none."""
    return traceparent.split("-")[1] if traceparent.count("-") >= _DASHES else ""


def deadline_of(envelope: pb.Envelope) -> float:
    """The moment on this process's monotonic clock when the request's time is up."""
    return time.monotonic() + envelope.deadline_ms / 1000


def work_key(envelope: pb.Envelope) -> RequestId:
    """Request id and attempt as one key: a late Cancel of an old attempt must not touch the new one."""
    return RequestId(wire.request_id_from_pb(envelope) + envelope.attempt.to_bytes(4, "little"))


def split_key(key: RequestId) -> tuple[bytes, int]:
    return key[:16], int.from_bytes(key[16:], "little")


async def refuse(context: Any, error: TriptychError) -> NoReturn:
    """End the call with the error as gRPC status and, whole, in the trailing metadata."""
    await context.abort(wire.status_code(error), error.message[:1000], wire.failure_trailer(error))
    raise AssertionError("abort returns control to nobody")


def translated(error: BaseException, what: str) -> TriptychError:
    """Our own errors as they are; anything else is a bug of ours, logged in full and told in short."""
    if isinstance(error, TriptychError):
        return error
    log.error("%s failed", what, exc_info=error)
    return InternalError(f"{what} failed: {type(error).__name__}")


def unary(
    method: Callable[[Any, Any, Any], Awaitable[Reply]],
) -> Callable[[Any, Any, Any], Awaitable[Reply]]:
    """An rpc method whose exceptions leave as gRPC errors."""

    @functools.wraps(method)
    async def guarded(self: Any, request: Any, context: Any) -> Reply:
        try:
            return await method(self, request, context)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:
            await refuse(context, translated(error, method.__name__))

    return guarded


def streaming(
    method: Callable[[Any, Any, Any], AsyncIterator[Reply]],
) -> Callable[[Any, Any, Any], AsyncIterator[Reply]]:
    """A reply-streaming rpc method whose exceptions leave as gRPC errors."""

    @functools.wraps(method)
    async def guarded(self: Any, request: Any, context: Any) -> AsyncIterator[Reply]:
        try:
            async for reply in method(self, request, context):
                yield reply
        except (asyncio.CancelledError, GeneratorExit, grpc.aio.AbortError):
            raise
        except Exception as error:
            await refuse(context, translated(error, method.__name__))

    return guarded


async def first_part(requests: AsyncIterator[Any], name: str) -> Any:
    """The `start` message that must open a request stream, with nothing beside it."""
    async for request in requests:
        if [field.name for field, _ in request.ListFields()] == ["start"]:
            return request.start
        break
    raise InvalidRecord(f"{name} must begin with its start message")
