"""The rpcs of one worker, typed, and streams whose failures are our own errors."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from triptych import wire
from triptych.errors import InternalError
from triptych.pb import (
    common_pb2,
    decode_pb2,
    decode_pb2_grpc,
    encoder_pb2,
    encoder_pb2_grpc,
    prefill_pb2,
    prefill_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)

Sent = TypeVar("Sent")
Received = TypeVar("Received")


class WorkerCalls:
    """Every rpc that a router makes, over one worker's channel; which ones answer depends on the worker's roles."""

    status: grpc.aio.UnaryUnaryMultiCallable[worker_pb2.StatusRequest, worker_pb2.StatusReply]
    cancel: grpc.aio.UnaryUnaryMultiCallable[worker_pb2.CancelRequest, common_pb2.Empty]
    renew: grpc.aio.UnaryUnaryMultiCallable[worker_pb2.RenewRequest, worker_pb2.RenewReply]
    encode: grpc.aio.StreamStreamMultiCallable[encoder_pb2.EncodeRequest, encoder_pb2.EncodeReplies]
    cache: grpc.aio.UnaryUnaryMultiCallable[encoder_pb2.CacheRequest, encoder_pb2.CacheReply]
    prefill: grpc.aio.StreamStreamMultiCallable[prefill_pb2.PrefillRequest, prefill_pb2.PrefillReply]
    reserve: grpc.aio.UnaryUnaryMultiCallable[decode_pb2.ReserveRequest, decode_pb2.ReserveReply]
    decode: grpc.aio.StreamUnaryMultiCallable[decode_pb2.DecodeRequest, decode_pb2.DecodeReply]
    attach: grpc.aio.UnaryStreamMultiCallable[decode_pb2.AttachRequest, decode_pb2.TokenBatch]

    def __init__(self, channel: grpc.aio.Channel) -> None:
        worker: Any = worker_pb2_grpc.WorkerStub(channel)  # type: ignore[no-untyped-call]
        encoder: Any = encoder_pb2_grpc.EncoderStub(channel)  # type: ignore[no-untyped-call]
        prefill: Any = prefill_pb2_grpc.PrefillStub(channel)  # type: ignore[no-untyped-call]
        decode: Any = decode_pb2_grpc.DecodeStub(channel)  # type: ignore[no-untyped-call]
        self.status, self.cancel, self.renew = worker.Status, worker.Cancel, worker.Renew
        self.encode, self.cache = encoder.Encode, encoder.Cache
        self.prefill = prefill.Prefill
        self.reserve, self.decode, self.attach = decode.Reserve, decode.Decode, decode.Attach


@contextmanager
def worker_errors() -> Iterator[None]:
    """Turns a failed call into the error the worker sent, or that its status implies."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise wire.error_from_rpc(error) from error


class Outbox(Generic[Sent]):
    """The sending side of a stream; several tasks may send. No worker waits for its end, so it has none."""

    def __init__(self, call: grpc.aio.StreamStreamCall[Sent, Any] | grpc.aio.StreamUnaryCall[Sent, Any]) -> None:
        self._call = call
        self._lock = asyncio.Lock()  # grpc takes one write at a time

    async def send(self, message: Sent) -> None:
        """Raises what ended the call, where it has ended."""
        async with self._lock:
            try:
                await self._call.write(message)
            except grpc.aio.AioRpcError as error:
                raise wire.error_from_rpc(error) from error
            except asyncio.InvalidStateError as error:
                with worker_errors():
                    await _raise_status(self._call)
                raise InternalError("a worker ended a call before it had everything") from error


class Inbox(Generic[Received]):
    """The receiving side of a stream; one task receives."""

    def __init__(
        self, call: grpc.aio.StreamStreamCall[Any, Received] | grpc.aio.UnaryStreamCall[Any, Received]
    ) -> None:
        self._call = call

    async def receive(self) -> Received | None:
        """The next message; None where the worker has ended the stream well."""
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise wire.error_from_rpc(error) from error
        return None if message is grpc.aio.EOF else message  # type: ignore[return-value]


async def _raise_status(call: grpc.aio.Call) -> None:
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )
