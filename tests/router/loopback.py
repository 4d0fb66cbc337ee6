"""A worker on loopback that speaks the whole protocol and computes nothing: token p of a prompt is a function of p.

Tests steer it by its attributes: what it fails with, what it waits for; and read what it was asked.
"""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from tests.router.loopback_prefill import BLOCK_SIZE, LoopbackPrefill, refuse, token_of, told
from triptych import wire
from triptych.errors import Draining, InvalidRecord, Overloaded, TriptychError, WrongIncarnation
from triptych.journey import (
    EmbeddingRef,
    Endpoint,
    Item,
    Role,
    Shard,
    Token,
    new_claim_id,
)
from triptych.multimodal.digest import source_digest
from triptych.multimodal.memfd import MemfdDescriptor, read_memfd
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
from triptych.router.fleet.link import KnownWorker

WAIT_SECONDS = 0.05  # between two words of one that makes room


@dataclass(slots=True, eq=False)
class LoopbackWorker:
    worker_id: str
    roles: frozenset[Role]
    fingerprint: bytes
    port: int = 0
    incarnation: int = field(default_factory=lambda: secrets.randbits(62) + 1)
    state: str = "ready"
    reads_memfd: bool = True
    num_blocks: int = 1000
    max_item_tokens: int = 0  # 0: not told
    max_model_len: int = 0  # likewise
    free_blocks: int = 1000
    queued_tokens: int = 0
    gauges: dict[str, float] = field(default_factory=dict)  # that it tells of beside those
    finish_at: int = 1 << 30  # position at which sequences end by themselves
    says: Sequence[int] = ()  # these tokens, then the end; prefill and decode must agree
    token_pause_seconds: float = 0.0
    tells_together: bool = False  # all that an Encode call or the end of a Prefill call has, in one message
    fail_encode: list[TriptychError] = field(default_factory=list)  # one per Encode call
    fail_item: dict[int, TriptychError] = field(default_factory=dict)
    fail_prefill: list[TriptychError] = field(default_factory=list)  # one per Prefill call, after it was accepted
    fail_prefill_late: list[TriptychError] = field(default_factory=list)  # one per Prefill call, behind its tokens
    window_items: int = 0  # items per window at prefill; 0: all in one
    held: frozenset[int] = frozenset()  # of every prompt, items whose rows the prefill worker says to have
    cached_items: int = 0  # of every prompt, the first ones: up to the end of the last, KV is there already
    grant_wrongly: list[prefill_pb2.Accepted] = field(default_factory=list)  # in place of the windows, one call
    fail_prefill_after: dict[int, TriptychError] = field(default_factory=dict)  # by number of refs it has got, once
    salts: list[bytes] = field(default_factory=list)  # of every Prefill call
    kv_here: int = 0  # tokens of every prompt whose KV decode says it has
    reserves: list[decode_pb2.ReserveRequest] = field(default_factory=list)
    kv_begins: list[int] = field(default_factory=list)  # of every Prefill call
    window_gate: asyncio.Event = field(default_factory=asyncio.Event)  # closed: no window but the first is granted
    late_gate: asyncio.Event = field(default_factory=asyncio.Event)  # what fails late waits for it
    fail_decode_at: dict[int, TriptychError] = field(default_factory=dict)  # by position, once
    waits_at: dict[int, float] = field(default_factory=dict)  # by position, once: seconds in which it makes room
    skip_position: int = -1  # a token that gets lost
    gate: asyncio.Event = field(default_factory=asyncio.Event)  # closed: reserve, prefill and encode wait
    drains: bool = False  # it refuses new work, and only then tells that it drains
    is_full: bool = False  # reservations wait for as long as they may, and are refused
    log: list[str] = field(default_factory=list)
    log_ids: set[str] = field(default_factory=set)  # of all calls that were let in
    traceparents: set[str] = field(default_factory=set)  # likewise
    checksums: list[bool] = field(default_factory=list)  # whether each call that was let in wanted them
    renewed: list[bytes] = field(default_factory=list)
    renew_hangs: bool = False  # questions to renew claims are never answered
    memfd_reads: int = 0
    chunks: int = 0
    digests: set[bytes] = field(default_factory=set)  # of all items that Encode calls have asked for
    row_sum: bytes = b""  # checksum of any rows
    refs: int = 0  # that Prefill calls have got
    ref_messages: int = 0  # in which they came
    _server: Any = None
    _routers: dict[str, asyncio.Queue[decode_pb2.SequenceTokens]] = field(default_factory=dict)
    _reserved: dict[tuple[bytes, int], str] = field(default_factory=dict)
    _decoding: dict[tuple[bytes, int], asyncio.Task[None]] = field(default_factory=dict)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"127.0.0.1:{self.port}", self.incarnation)

    @property
    def known(self) -> KnownWorker:
        return KnownWorker(self.worker_id, self.endpoint, self.roles)

    @property
    def reserved(self) -> int:
        return len(self._reserved)

    async def start(self) -> None:
        self.gate.set()
        self.window_gate.set()
        server = grpc.aio.server(options=wire.CHANNEL_OPTIONS)
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        add: Any
        for add, servicer in (
            (worker_pb2_grpc.add_WorkerServicer_to_server, _Worker(self)),
            (encoder_pb2_grpc.add_EncoderServicer_to_server, _Encoder(self)),
            (prefill_pb2_grpc.add_PrefillServicer_to_server, LoopbackPrefill(self)),
            (decode_pb2_grpc.add_DecodeServicer_to_server, _Decode(self)),
        ):
            add(servicer, server)
        await server.start()
        self._server = server

    async def kill(self) -> None:
        """As if the process died: every call breaks at once."""
        for task in self._decoding.values():
            task.cancel()
        await self._server.stop(grace=None)
        self._routers.clear()
        self._reserved.clear()

    async def restart(self) -> None:
        """Another process at the same address."""
        await self.kill()
        self.incarnation = secrets.randbits(62) + 1
        await self.start()

    async def drop_routers(self) -> None:
        """Breaks the token streams, and nothing else."""
        for queue in self._routers.values():
            queue.put_nowait(decode_pb2.SequenceTokens())

    async def admit(self, envelope: common_pb2.Envelope, context: Any) -> None:
        """As `check`, for new work."""
        await self.check(envelope, context)
        self.checksums.append(envelope.checksums)
        self.log_ids.add(envelope.log_id)
        self.traceparents.add(envelope.traceparent)
        if self.drains:
            self.state = "draining"
            self.log.append("refused")
            await refuse(context, Draining("it takes nothing new"))

    async def check(self, envelope: common_pb2.Envelope, context: Any) -> None:
        if envelope.worker_incarnation != self.incarnation:
            await refuse(context, WrongIncarnation("another process is meant"))
        assert envelope.model_fingerprint == self.fingerprint
        assert len(envelope.request_id) == 16
        assert envelope.deadline_ms > 0


class _Worker(worker_pb2_grpc.WorkerServicer):
    def __init__(self, worker: LoopbackWorker) -> None:
        self._worker = worker

    async def Status(self, request: worker_pb2.StatusRequest, context: Any) -> worker_pb2.StatusReply:
        worker = self._worker
        gauges = {
            "kv_blocks": worker.num_blocks,
            "kv_free_blocks": worker.free_blocks,
            "prefill_queued_tokens": worker.queued_tokens,
            "encoder_queued_tokens": worker.queued_tokens,
            **worker.gauges,
        }
        reply = worker_pb2.StatusReply(
            worker_id=worker.worker_id,
            incarnation=worker.incarnation,
            roles=sorted(worker.roles),
            state=worker.state,
            pid=os.getpid(),
            model_fingerprint=worker.fingerprint,
            gauges=[worker_pb2.Gauge(name=name, value=value) for name, value in gauges.items()],
            protocol=wire.PROTOCOL,
            block_size=BLOCK_SIZE,
            max_item_tokens=worker.max_item_tokens,
            max_model_len=worker.max_model_len,
        )
        if request.HasField("probe"):
            probe = request.probe
            found = read_memfd(MemfdDescriptor(probe.host_id, probe.pid, probe.fd), len(probe.nonce))
            reply.probe_readable = worker.reads_memfd and found == probe.nonce
        return reply

    async def Cancel(self, request: worker_pb2.CancelRequest, context: Any) -> common_pb2.Empty:
        await self._worker.check(request.envelope, context)
        self._worker.log.append("cancel")
        key = request.envelope.request_id, request.envelope.attempt
        self._worker._reserved.pop(key, None)
        if key in self._worker._decoding:
            self._worker._decoding.pop(key).cancel()
        return common_pb2.Empty()

    async def Renew(self, request: worker_pb2.RenewRequest, context: Any) -> worker_pb2.RenewReply:
        await self._worker.check(request.envelope, context)
        self._worker.renewed += request.claim_ids
        if self._worker.renew_hangs:
            await asyncio.get_running_loop().create_future()
        return worker_pb2.RenewReply()


class _Encoder(encoder_pb2_grpc.EncoderServicer):
    def __init__(self, worker: LoopbackWorker) -> None:
        self._worker = worker

    async def Encode(self, requests: AsyncIterator[encoder_pb2.EncodeRequest], context: Any) -> AsyncIterator[Any]:
        worker = self._worker
        start = (await anext(requests)).start
        arrived = time.monotonic()
        await worker.admit(start.envelope, context)
        worker.log.append(f"encode {','.join(str(item.index) for item in start.items)}")
        await worker.gate.wait()
        media = {source.index: bytearray() for source in start.media}
        for source in start.media:
            if source.HasField("memfd"):
                worker.memfd_reads += 1
                where = MemfdDescriptor(source.memfd.host_id, source.memfd.pid, source.memfd.fd)
                media[source.index] += read_memfd(where, source.num_bytes)
        for source in start.media:
            while len(media[source.index]) < source.num_bytes:
                chunk = (await anext(requests)).chunk
                worker.chunks += 1
                media[chunk.media] += chunk.data
        for source in start.media:
            assert source_digest(bytes(media[source.index])) == source.digest
        error = worker.fail_encode.pop(0) if worker.fail_encode else None
        if error is not None:
            await refuse(context, error)
        replies: list[encoder_pb2.EncodeReply] = []
        for message in start.items:
            item = wire.item_from_pb(message)
            worker.digests.add(item.digest)
            failure = worker.fail_item.pop(item.index, None)
            reply = encoder_pb2.EncodeReply(item_index=item.index, **told(arrived, "encode", item.index))
            if failure is not None:
                reply.failure.CopyFrom(wire.failure_to_pb(failure))
            else:
                reply.ref.CopyFrom(wire.embedding_ref_to_pb(self._ref(item)))
            replies.append(reply)
            if len(replies) == len(start.items) or not worker.tells_together:
                yield encoder_pb2.EncodeReplies(replies=replies)
                replies.clear()

    def _ref(self, item: Item) -> EmbeddingRef:
        return EmbeddingRef(
            claim_id=new_claim_id(),
            owner=self._worker.endpoint,
            item_digest=item.digest,
            rows=item.rows,
            width=8,
            dtype="float32",
            shards=(Shard(0, 1, 0),),
            generation=1,
            lease_seconds=30,
            checksum=self._worker.row_sum,
        )


class _Decode(decode_pb2_grpc.DecodeServicer):
    def __init__(self, worker: LoopbackWorker) -> None:
        self._worker = worker

    async def Reserve(self, request: decode_pb2.ReserveRequest, context: Any) -> decode_pb2.ReserveReply:
        worker, envelope, arrived = self._worker, request.envelope, time.monotonic()
        await worker.admit(envelope, context)
        assert envelope.router_id in worker._routers, "a router attaches before it reserves"
        worker.log.append(f"reserve {request.prompt_tokens}+{request.max_tokens}x{request.branches}")
        await worker.gate.wait()
        if worker.is_full:
            await asyncio.sleep(request.wait_ms / 1000)
            await refuse(context, Overloaded("no room before the deadline"))
        worker._reserved[envelope.request_id, envelope.attempt] = envelope.router_id
        worker.reserves.append(request)
        seconds = time.monotonic() - arrived
        return decode_pb2.ReserveReply(reserved_blocks=1, queue_seconds=seconds, cached_tokens=worker.kv_here)

    async def Decode(self, requests: AsyncIterator[decode_pb2.DecodeRequest], context: Any) -> decode_pb2.DecodeReply:
        worker = self._worker
        start = (await anext(requests)).start
        arrived = time.monotonic()
        await worker.check(start.envelope, context)
        key = start.envelope.request_id, start.envelope.attempt
        try:
            first = await self._take_over(requests, start)
        except BaseException:
            worker._reserved.pop(key, None)
            raise
        router_id = worker._reserved[key]
        worker.log.append(f"decode after {len(wire.tokens_from_bytes(start.generated)) + 1}")
        worker._decoding[key] = asyncio.create_task(self._generate(key, router_id, start, first))
        return decode_pb2.DecodeReply(**told(arrived, "handover"))

    async def Attach(self, request: decode_pb2.AttachRequest, context: Any) -> AsyncIterator[decode_pb2.TokenBatch]:
        await self._worker.check(request.envelope, context)
        queue: asyncio.Queue[decode_pb2.SequenceTokens] = asyncio.Queue()
        self._worker._routers[request.envelope.router_id] = queue
        yield decode_pb2.TokenBatch()
        while (sequence := await queue.get()).request_id:
            yield decode_pb2.TokenBatch(sequences=[sequence])

    async def _take_over(self, requests: AsyncIterator[decode_pb2.DecodeRequest], start: Any) -> list[Token]:
        covered = self._worker.kv_here
        async for request in requests:
            for ref in request.kv:
                assert ref.tokens_begin == covered
                covered = ref.tokens_end
            if request.HasField("first"):
                expected = len(start.layout.token_ids) // 4 + len(start.generated) // 4
                assert covered == expected
                return [wire.token_from_pb(token) for token in request.first.tokens]
        raise InvalidRecord("the call ended before the first tokens")

    async def _generate(self, key: tuple[bytes, int], router_id: str, start: Any, first: list[Token]) -> None:
        worker = self._worker
        open_branches = [token.choice for token in first if not token.finish_reason]
        position = first[0].position
        try:
            while open_branches:
                position += 1
                await asyncio.sleep(worker.token_pause_seconds)
                for _ in range(round(worker.waits_at.pop(position, 0) / WAIT_SECONDS)):
                    worker._routers[router_id].put_nowait(decode_pb2.SequenceTokens(request_id=key[0], attempt=key[1]))
                    await asyncio.sleep(WAIT_SECONDS)
                message = decode_pb2.SequenceTokens(request_id=key[0], attempt=key[1])
                failure = worker.fail_decode_at.pop(position, None)
                if failure is not None:
                    message.failure.CopyFrom(wire.failure_to_pb(failure))
                    open_branches.clear()
                elif position != worker.skip_position:
                    tokens = [token_of(worker, choice, position, start.sampling.max_tokens) for choice in open_branches]
                    message.tokens.extend(map(wire.token_to_pb, tokens))
                    open_branches = [token.choice for token in tokens if not token.finish_reason]
                worker._routers[router_id].put_nowait(message)
        finally:
            worker._reserved.pop(key, None)
            worker._decoding.pop(key, None)
