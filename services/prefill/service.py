"""Prefill rpc: layout first, refs as they come; KV refs and the first tokens back."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from triptych import wire
from triptych.engine.loop import PrefillJob
from triptych.errors import InternalError, InvalidRecord
from triptych.journey import KVRef, RequestId
from triptych.multimodal.layout import verify_layout
from triptych.pb import prefill_pb2 as pb
from triptych.pb.prefill_pb2_grpc import PrefillServicer, add_PrefillServicer_to_server
from triptych.sampling import MOST_BRANCHES
from triptych.services.faulty import gathered, passed_on, passing
from triptych.services.guard import Door, deadline_of, first_part, streaming, work_key
from triptych.services.prefill.worker import FirstTokens, Granted, PrefillEvent, PrefillWorker
from triptych.services.site import Language, Site
from triptych.transfer.faults import Faults


class PrefillService(PrefillServicer):
    """Not idempotent: a retry is a new attempt. A call that ends early is cancelled."""

    def __init__(self, door: Door, worker: PrefillWorker, faults: Faults) -> None:
        self._door = door
        self._worker = worker
        self._faults = faults

    @streaming
    async def Prefill(self, requests: AsyncIterator[pb.PrefillRequest], context: Any) -> AsyncIterator[pb.PrefillReply]:
        start: pb.PrefillStart = await first_part(requests, "Prefill")
        arrived = time.monotonic()
        with self._door.inside(start.envelope, new_work=True):
            await passing(self._faults, "prefill.begin")
            job = _job(start)
            verify_layout(job.layout)
            events: asyncio.Queue[PrefillEvent | BaseException] = asyncio.Queue()
            loop = asyncio.get_running_loop()

            def emit(event: PrefillEvent | BaseException) -> None:  # on an engine or pull thread
                loop.call_soon_threadsafe(events.put_nowait, event)

            receiving = asyncio.create_task(self._receive(requests, job.request_id, emit))
            finished = False
            try:
                lease_seconds = self._door.lease_seconds(start.lease_ms)
                self._worker.begin(job, lease_seconds, emit, start.envelope.checksums)
                while not finished:
                    there: tuple[list[PrefillEvent], BaseException | None] = await gathered(events, self._faults)
                    ready, error = there
                    for reply in _replies([sent for event in ready for sent in await self._sent(event)], arrived):
                        yield reply
                    finished = any(isinstance(event, FirstTokens) for event in ready)
                    if error is not None and not finished:
                        raise error
            finally:
                receiving.cancel()
                if not finished:
                    self._worker.cancel(job.request_id)

    async def _receive(self, requests: AsyncIterator[pb.PrefillRequest], key: RequestId, emit: Any) -> None:
        try:
            async for request in requests:
                if request.HasField("start") or not request.items:
                    raise InvalidRecord("Prefill takes one start message, then items")
                for item in request.items:
                    for sent in await passed_on(self._faults, "rows.ref", item):
                        self._worker.deliver(key, sent.item_index, wire.embedding_ref_from_pb(sent.ref))
        except Exception as error:
            emit(error)

    async def _sent(self, event: PrefillEvent) -> Sequence[PrefillEvent]:
        """What leaves in this event's place: the event, unless a test has it otherwise."""
        if isinstance(event, KVRef):
            return await passed_on(self._faults, "kv.ref", event)
        await passing(self._faults, "prefill.accepted" if isinstance(event, Granted) else "prefill.first")
        return (event,)


def build_prefill(site: Site, language: Language | None, server: grpc.aio.Server) -> PrefillWorker:
    """The prefill role, registered with the server."""
    if language is None:
        raise InternalError("a prefill worker needs the language model")
    worker = PrefillWorker(site, language)
    add_PrefillServicer_to_server(PrefillService(site.door, worker, site.faults), server)  # type: ignore[no-untyped-call]
    return worker


def _job(start: pb.PrefillStart) -> PrefillJob:
    if not 1 <= start.branches <= MOST_BRANCHES:
        raise InvalidRecord(f"Prefill asks for {start.branches} branches, expected 1 to {MOST_BRANCHES}")
    generated = tuple(int(token) for token in wire.tokens_from_bytes(start.generated))
    if generated and start.branches != 1:
        raise InvalidRecord("a request with several branches cannot be continued from generated tokens")
    return PrefillJob(
        request_id=work_key(start.envelope),
        attempt=start.envelope.attempt,
        layout=wire.layout_from_pb(start.layout),
        sampling=wire.sampling_from_pb(start.sampling),
        branches=start.branches,
        choice=start.choice,
        generated=generated,
        deadline=deadline_of(start.envelope),
        keep_kv=start.decode_follows,
        kv_begin=start.kv_begin,
        cache_salt=start.cache_salt,
    )


def _replies(events: Sequence[PrefillEvent], arrived: float) -> Sequence[pb.PrefillReply]:
    """One message; more only where their order could not be read from it."""
    replies: list[pb.PrefillReply] = []
    before: PrefillEvent | None = None
    for event in events:
        in_order = isinstance(event, FirstTokens) or (isinstance(event, KVRef) and not isinstance(before, FirstTokens))
        if replies and in_order:
            replies[-1].MergeFrom(_reply(event, arrived))
        else:
            replies.append(_reply(event, arrived))
        before = event
    return replies


def _reply(event: PrefillEvent, arrived: float) -> pb.PrefillReply:
    if isinstance(event, Granted):
        window, held = event.window, event.held
        asked = [index for index in window.items if index not in held]
        accepted = pb.Accepted(items=asked, cached_tokens=window.cached_tokens, more=not window.last, held=held)
        return pb.PrefillReply(accepted=accepted)
    if isinstance(event, KVRef):
        return pb.PrefillReply(kv=[wire.kv_ref_to_pb(event)])
    if isinstance(event, FirstTokens):
        tokens = [wire.token_to_pb(token) for token in event.tokens]
        first = pb.FirstTokens(
            tokens=tokens,
            times=wire.stage_times_to_pb(event.times, arrived),
            cached_tokens=event.cached_tokens,
            since_arrival=time.monotonic() - arrived,
        )
        return pb.PrefillReply(first=first)
    raise InternalError(f"no reply for {type(event).__name__}")
