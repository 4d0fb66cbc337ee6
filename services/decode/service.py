"""Decode rpcs: reserve, take KV over, stream tokens."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from triptych import wire
from triptych.engine.block_keys import BlockKeys
from triptych.engine.jobs import Reserved
from triptych.engine.loop import DecodeJob
from triptych.errors import InternalError, InvalidRecord, TransferFailed, TriptychError
from triptych.journey import RequestId, Token
from triptych.multimodal.layout import verify_layout
from triptych.pb import decode_pb2 as pb
from triptych.pb.decode_pb2_grpc import DecodeServicer, add_DecodeServicer_to_server
from triptych.sampling import MOST_BRANCHES, Sampling
from triptych.services.decode.streams import Entry, RouterStream
from triptych.services.decode.worker import DecodeWorker
from triptych.services.faulty import passed_on, passing
from triptych.services.guard import Door, deadline_of, first_part, split_key, streaming, unary, work_key
from triptych.services.site import Language, Site
from triptych.stages import StageSpan
from triptych.transfer.faults import Faults


class DecodeService(DecodeServicer):
    """Tokens leave over Attach; Decode itself answers when the KV has landed."""

    def __init__(self, door: Door, worker: DecodeWorker, faults: Faults) -> None:
        self._door = door
        self._worker = worker
        self._faults = faults

    @unary
    async def Reserve(self, request: pb.ReserveRequest, context: Any) -> pb.ReserveReply:
        with self._door.inside(request.envelope, new_work=True):
            if min(request.prompt_tokens, request.max_tokens) < 1:
                raise InvalidRecord("Reserve needs prompt_tokens and max_tokens of at least 1")
            _require_branches(request.branches)
            key = work_key(request.envelope)
            loop = asyncio.get_running_loop()
            outcome: asyncio.Future[Reserved | TriptychError] = loop.create_future()

            def settle(value: Reserved | TriptychError) -> None:
                if not outcome.done():
                    outcome.set_result(value)

            def granted(value: Reserved | TriptychError) -> None:  # on the engine thread
                loop.call_soon_threadsafe(settle, value)

            began = time.monotonic()
            deadline = deadline_of(request.envelope)
            keys = await loop.run_in_executor(self._worker.keying, self._keys, request)
            try:
                self._worker.reserve(
                    request.envelope.router_id,
                    key,
                    request.envelope.attempt,
                    request.prompt_tokens,
                    request.max_tokens,
                    request.branches,
                    deadline,
                    min(deadline, began + request.wait_ms / 1000) if request.wait_ms else deadline,
                    granted,
                    keys,
                    request.priority,
                )
                reserved = await outcome
                await passing(self._faults, "reserve.serve")
            except asyncio.CancelledError:
                self._worker.cancel(key)
                raise
            if isinstance(reserved, TriptychError):
                raise reserved
            return pb.ReserveReply(
                reserved_blocks=reserved.num_blocks,
                queue_seconds=time.monotonic() - began,
                cached_tokens=reserved.cached_tokens,
            )

    @unary
    async def Decode(self, requests: AsyncIterator[pb.DecodeRequest], context: Any) -> pb.DecodeReply:
        start: pb.DecodeStart = await first_part(requests, "Decode")
        arrived = time.monotonic()
        with self._door.inside(start.envelope, new_work=False):
            key = work_key(start.envelope)
            try:
                await passing(self._faults, "decode.begin")
                sampling = wire.sampling_from_pb(start.sampling)
                self._worker.engine.expect(sampling)  # its grammar is compiled while the KV travels
                first = await self._take_over(key, requests)
                job = _job(key, start, sampling, first)
                verify_layout(job.layout)
                began = time.monotonic()
                await self._land(job)
                await asyncio.to_thread(self._worker.start, job)
            except BaseException:
                self._worker.cancel(key)
                raise
            now = time.monotonic()
            times = wire.stage_times_to_pb([StageSpan("handover", began, now)], arrived)
            return pb.DecodeReply(times=times, since_arrival=now - arrived)

    @streaming
    async def Attach(self, request: pb.AttachRequest, context: Any) -> AsyncIterator[pb.TokenBatch]:
        self._door.check(request.envelope)
        router_id = request.envelope.router_id
        stream = RouterStream(asyncio.get_running_loop())
        self._worker.attach(router_id, stream)
        try:
            yield pb.TokenBatch()  # tells the router that it is attached
            while (entries := await stream.next()) is not None:
                await passing(self._faults, "decode.tokens")
                yield _batch(entries)
        finally:
            self._worker.detach(router_id, stream)

    def _keys(self, request: pb.ReserveRequest) -> BlockKeys | None:
        """What the prompt's beginning is found by; None where nothing is looked up. On the worker's keying thread."""
        if not (request.HasField("layout") and self._worker.finds_prefixes):
            return None
        layout = wire.layout_from_pb(request.layout)
        verify_layout(layout)
        return self._worker.block_keys(layout, _tokens(request.generated), request.cache_salt)

    async def _land(self, job: DecodeJob) -> None:
        """Returns when the KV has landed. Raises a pull's error, or TransferFailed when it is overdue.

        Waits on no thread: those are few, and an owner that hangs would hold up the requests of others.
        """
        landed, seconds = asyncio.wrap_future(self._worker.land(job)), self._worker.landing_seconds
        await asyncio.wait({landed}, timeout=seconds)
        if not landed.done():
            raise TransferFailed(f"the KV of {job.layout.num_tokens} tokens has not landed within {seconds:g} s")
        failure = landed.result()
        if failure is not None:
            raise failure

    async def _take_over(self, key: RequestId, requests: AsyncIterator[pb.DecodeRequest]) -> tuple[Token, ...]:
        """Queue a pull per KV ref until the first tokens come."""
        async for request in requests:
            if request.HasField("start") or not request.ListFields():
                raise InvalidRecord("Decode takes one start message, then KV refs, then the first tokens")
            for announced in request.kv:
                for ref in await passed_on(self._faults, "kv.take", announced):
                    self._worker.pull(key, wire.kv_ref_from_pb(ref))
            if request.HasField("first"):
                return tuple(wire.token_from_pb(token) for token in request.first.tokens)
        raise InvalidRecord("the Decode call ended before the first tokens came")


def build_decode(site: Site, language: Language | None, server: grpc.aio.Server) -> DecodeWorker:
    """The decode role, registered with the server."""
    if language is None:
        raise InternalError("a decode worker needs the language model")
    worker = DecodeWorker(site, language)
    add_DecodeServicer_to_server(DecodeService(site.door, worker, site.faults), server)  # type: ignore[no-untyped-call]
    return worker


def _job(key: RequestId, start: pb.DecodeStart, sampling: Sampling, first: tuple[Token, ...]) -> DecodeJob:
    _require_branches(start.branches)
    if len(first) != start.branches:
        raise InvalidRecord(f"{len(first)} first tokens came for {start.branches} branches")
    return DecodeJob(
        request_id=key,
        attempt=start.envelope.attempt,
        layout=wire.layout_from_pb(start.layout),
        sampling=sampling,
        branches=start.branches,
        choice=start.choice,
        generated=_tokens(start.generated),
        first=first,
        deadline=deadline_of(start.envelope),
    )


def _tokens(data: bytes) -> tuple[int, ...]:
    return tuple(int(token) for token in wire.tokens_from_bytes(data))


def _require_branches(branches: int) -> None:
    if not 1 <= branches <= MOST_BRANCHES:
        raise InvalidRecord(f"{branches} branches are asked for, expected 1 to {MOST_BRANCHES}")


def _batch(entries: list[Entry]) -> pb.TokenBatch:
    """Entries of one request are gathered, requests keep their order of first appearance."""
    sequences: dict[RequestId, pb.SequenceTokens] = {}
    for key, entry in entries:
        sequence = sequences.get(key)
        if sequence is None:
            request_id, attempt = split_key(key)
            sequence = sequences[key] = pb.SequenceTokens(request_id=request_id, attempt=attempt)
        if isinstance(entry, Token):
            sequence.tokens.append(wire.token_to_pb(entry))
        elif entry is not None:
            sequence.failure.CopyFrom(wire.failure_to_pb(entry))
    return pb.TokenBatch(sequences=sequences.values())
