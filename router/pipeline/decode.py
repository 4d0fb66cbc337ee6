"""Blocks are reserved at a decode worker, KV lands in them, tokens come."""

import asyncio
import time
from collections.abc import Sequence
from typing import Self

import grpc.aio

from triptych import wire
from triptych.errors import InternalError, TriptychError
from triptych.journey import Role, Token
from triptych.pb import common_pb2, decode_pb2
from triptych.router.fleet.bookings import Booking
from triptych.router.fleet.calls import Outbox, worker_errors
from triptych.router.fleet.link import WorkerLink
from triptych.router.pipeline.stage_tools import StageTools

_WAITING_SHARE = 0.9  # of the time without progress that ends a request
_LONGEST_WAIT_MS = (1 << 32) - 1


class DecodeStage:
    """One request's blocks, Decode call and tokens at one worker, for one attempt."""

    def __init__(self, tools: StageTools, link: WorkerLink, booking: Booking, cached_tokens: int) -> None:
        """cached_tokens: of the prompt, whose KV the worker has already"""
        self.link = link
        self.cached_tokens = cached_tokens
        self.landed = asyncio.Event()  # the worker has all the KV
        self._tools = tools
        self._booking = booking
        self._call: grpc.aio.StreamUnaryCall[decode_pb2.DecodeRequest, decode_pb2.DecodeReply] = link.calls.decode(
            timeout=tools.seconds_left()
        )
        self._outbox: Outbox[decode_pb2.DecodeRequest] = Outbox(self._call)
        self._trouble: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sent_at = 0.0  # the Decode call, on time.perf_counter

    @classmethod
    async def reserve(cls, tools: StageTools, link: WorkerLink) -> Self:
        """Blocks to begin with, all or nothing; waits in order while the worker is full."""
        tokens = tools.prompt_tokens + tools.request.prepared.branches * tools.tokens_to_come
        booking = link.bookings[Role.DECODE].add(tokens / max(1, link.status.block_size))
        tools.ask(Role.DECODE, link)
        try:
            cached_tokens = await link.hold(_reserve(tools, link))
        except BaseException:
            booking.close()
            raise
        booking.sent(tools.now())  # from now on the worker itself reports these blocks as taken
        tools.request.touch()
        return cls(tools, link, booking, cached_tokens)

    async def open(self) -> None:
        """Begins the Decode call, so that the reservation lives and dies with it."""
        self._sent_at = time.perf_counter()
        self.link.tokens.subscribe(self._tools.request.id, self._tools.number, self)
        await self.link.hold(self._outbox.send(decode_pb2.DecodeRequest(start=self._start())))

    async def give(self, kv: Sequence[common_pb2.KVRef], first: Sequence[common_pb2.Token]) -> None:
        """first: tokens to go on from, none before the last KV ref"""
        tokens = decode_pb2.FirstTokenList(tokens=first) if first else None
        await self._outbox.send(decode_pb2.DecodeRequest(kv=kv, first=tokens))

    async def land(self) -> None:
        """Returns when the worker has all the KV."""
        await self.link.hold(self._land())
        self._tools.request.touch()
        self.landed.set()

    async def listen(self) -> None:
        """Until cancelled. Raises what the worker's side of the request fails with."""
        await self._trouble

    def close(self) -> None:
        """Listens no longer; ends the call if it has not ended."""
        self.link.tokens.unsubscribe(self._tools.request.id, self._tools.number)
        self._call.cancel()
        self._booking.close()

    def tokens(self, tokens: Sequence[Token]) -> None:
        """From the token feed."""
        try:
            self._tools.request.timeline.decodes()
            self._tools.request.deliver(tokens)
        except TriptychError as error:
            self.failed(error)

    def waiting(self) -> None:
        """From the token feed."""
        self._tools.request.touch()

    def failed(self, error: TriptychError) -> None:
        """From the token feed."""
        if not self._trouble.done():
            self._trouble.set_exception(error)

    async def _land(self) -> None:
        with worker_errors():
            reply = await self._call
        timeline = self._tools.request.timeline
        timeline.add_told(Role.DECODE, self.link.worker_id, self._sent_at, reply.times, reply.since_arrival)

    def _start(self) -> decode_pb2.DecodeStart:
        prepared = self._tools.request.prepared
        return decode_pb2.DecodeStart(
            envelope=self._tools.envelope(self.link),
            layout=self._tools.request.layout_message,
            sampling=wire.sampling_to_pb(prepared.sampling),
            branches=prepared.branches,
            generated=self._tools.generated,
        )


async def _reserve(tools: StageTools, link: WorkerLink) -> int:
    """Tokens of the prompt whose KV the worker has already.

    Raises Overloaded where the worker says that it has no room, and InternalError for an answer that makes no sense.
    """
    prepared = tools.request.prepared
    tools.request.touch()  # a worker was found: all of a stage's time is for its answer
    request = decode_pb2.ReserveRequest(
        envelope=tools.envelope(link),
        prompt_tokens=tools.prompt_tokens,
        max_tokens=tools.tokens_to_come,
        branches=prepared.branches,
        lease_ms=tools.lease_ms,
        layout=tools.request.layout_message,
        cache_salt=prepared.cache_salt,
        generated=tools.generated,
        priority=prepared.priority,
        wait_ms=min(_LONGEST_WAIT_MS, max(1, int(tools.stage_seconds * _WAITING_SHARE * 1000))),
    )
    sent_at = time.perf_counter()
    with worker_errors():
        reply = await link.calls.reserve(request, timeout=tools.seconds_left())
    queued = common_pb2.StageTime(stage="reserve", seconds=reply.queue_seconds)
    tools.request.timeline.add_told(Role.DECODE, link.worker_id, sent_at, (queued,), reply.queue_seconds)
    if reply.cached_tokens >= tools.prompt_tokens:
        raise InternalError(f"a decode worker has KV of {reply.cached_tokens} of {tools.prompt_tokens} prompt tokens")
    return reply.cached_tokens
