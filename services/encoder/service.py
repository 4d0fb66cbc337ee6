"""Encoder rpcs: media in, one ref per item out, each as soon as it is ready."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import grpc
from blake3 import blake3

from triptych import wire
from triptych.engine.cache_control import CacheAction
from triptych.engine.encoder_loop import EncodeJob, EncoderEngine, EncodeResult
from triptych.errors import InvalidRecord, InvalidRequest, TransferFailed
from triptych.journey import Item
from triptych.multimodal.memfd import MemfdDescriptor, read_memfd
from triptych.pb import encoder_pb2 as pb
from triptych.pb.encoder_pb2_grpc import EncoderServicer, add_EncoderServicer_to_server
from triptych.services.encoder.worker import EncoderWorker
from triptych.services.faulty import gathered, passed_on, passing
from triptych.services.guard import Door, deadline_of, first_part, streaming, unary, work_key
from triptych.services.site import Language, Site
from triptych.transfer.faults import Faults

_MAX_MEDIA_BYTES = 1 << 30
_DIGEST_BYTES = 32
_ACTIONS: Mapping[int, CacheAction] = {
    pb.CacheRequest.PIN: CacheAction.PIN,
    pb.CacheRequest.UNPIN: CacheAction.UNPIN,
    pb.CacheRequest.CLEAR: CacheAction.CLEAR,
}


class EncoderService(EncoderServicer):
    """Idempotent: rows are found by digest, every call gets claims of its own."""

    def __init__(self, door: Door, engine: EncoderEngine, faults: Faults) -> None:
        self._door = door
        self._engine = engine
        self._faults = faults

    @streaming
    async def Encode(self, requests: AsyncIterator[pb.EncodeRequest], context: Any) -> AsyncIterator[pb.EncodeReplies]:
        start: pb.EncodeStart = await first_part(requests, "Encode")
        arrived = time.monotonic()
        with self._door.inside(start.envelope, new_work=True):
            await passing(self._faults, "encode.begin")
            key, deadline = work_key(start.envelope), deadline_of(start.envelope)
            lease_seconds = self._door.lease_seconds(start.lease_ms)
            items = [wire.item_from_pb(item) for item in start.items]
            inbox = MediaInbox(start.media, items)
            results: asyncio.Queue[EncodeResult | BaseException] = asyncio.Queue()
            loop = asyncio.get_running_loop()

            def deliver(result: EncodeResult) -> None:  # on an engine thread
                loop.call_soon_threadsafe(results.put_nowait, result)

            def submit(media: int) -> None:
                for item in items:
                    if item.media == media:
                        job = EncodeJob(
                            *(key, item, inbox.reader(media), lease_seconds, deadline),
                            checksum=start.envelope.checksums,
                        )
                        self._engine.submit(job, deliver)

            receiving = asyncio.create_task(_receive(requests, inbox, submit, results))
            try:
                num_left = len(items)
                while num_left:
                    ready, error = await gathered(results, self._faults)
                    num_left -= len(ready)
                    told = [sent for result in ready for sent in await passed_on(self._faults, "encode.ref", result)]
                    if told:
                        yield pb.EncodeReplies(replies=[_reply(result, arrived) for result in told])
                        await passing(self._faults, "encode.sent")
                    if error is not None:
                        raise error
            except BaseException:
                self._engine.cancel(key)
                raise
            finally:
                receiving.cancel()

    @unary
    async def Cache(self, request: pb.CacheRequest, context: Any) -> pb.CacheReply:
        self._door.check(request.envelope)
        action = _ACTIONS.get(request.action)
        if action is None:
            raise InvalidRecord(f"cache action {request.action} is not known, expected one of {sorted(_ACTIONS)}")
        for digest in request.digests:
            if len(digest) != _DIGEST_BYTES:
                raise InvalidRecord(f"an item digest has {len(digest)} bytes, expected {_DIGEST_BYTES}")
        found = self._engine.control(action, request.digests)
        return pb.CacheReply(items=found.items, num_bytes=found.num_bytes)

    @unary
    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeReply:
        self._door.check(request.envelope)
        raise InvalidRequest("images are described by their headers; this model takes no other modality")


def build_encoder(site: Site, language: Language | None, server: grpc.aio.Server) -> EncoderWorker:
    """The encode role, registered with the server; it has no use for a language model."""
    worker = EncoderWorker(site)
    add_EncoderServicer_to_server(EncoderService(site.door, worker.engine, site.faults), server)  # type: ignore[no-untyped-call]
    return worker


class MediaInbox:
    """The call's source bytes: behind a descriptor, or gathered from chunks. Checks sizes and order, not content."""

    def __init__(self, sources: Iterable[pb.MediaSource], items: Iterable[Item]) -> None:
        self._sources: Mapping[int, pb.MediaSource] = {source.index: source for source in sources}
        self._chunks: dict[int, bytearray] = {
            index: bytearray() for index, source in self._sources.items() if not source.HasField("memfd")
        }
        for index, source in self._sources.items():
            if not 0 < source.num_bytes <= _MAX_MEDIA_BYTES:
                raise InvalidRecord(f"media {index} has {source.num_bytes} bytes, expected 1 to {_MAX_MEDIA_BYTES}")
        for item in items:
            if item.media not in self._sources:
                raise InvalidRecord(f"item {item.index} names media {item.media}, which was not announced")

    @property
    def complete(self) -> list[int]:
        """Media that can be read already."""
        return [index for index in self._sources if index not in self._chunks or self._whole(index)]

    @property
    def pending(self) -> bool:
        return any(not self._whole(index) for index in self._chunks)

    def add(self, chunk: pb.MediaChunk) -> bool:
        """Take a chunk; True when its media is whole now. Raises InvalidRecord for one out of place."""
        gathered = self._chunks.get(chunk.media)
        if gathered is None:
            raise InvalidRecord(f"a chunk came for media {chunk.media}, which was not announced in chunks")
        if chunk.offset != len(gathered) or not chunk.data:
            raise InvalidRecord(f"media {chunk.media}: chunk at {chunk.offset}, expected {len(gathered)}")
        if chunk.offset + len(chunk.data) > self._sources[chunk.media].num_bytes:
            raise InvalidRecord(f"media {chunk.media} is longer than its announced size")
        gathered += chunk.data
        return self._whole(chunk.media)

    def reader(self, media: int) -> Callable[[], bytes]:
        """Gives the bytes, verified against their digest; called on a preprocessing thread."""
        source = self._sources[media]
        gathered = self._chunks.get(media)

        def read() -> bytes:
            if gathered is not None:
                data = bytes(gathered)
            else:
                memfd = source.memfd
                descriptor = MemfdDescriptor(memfd.host_id, memfd.pid, memfd.fd)
                data = bytes(read_memfd(descriptor, source.num_bytes))
            if blake3(data).digest() != source.digest:
                raise TransferFailed(f"media {media} arrived with other bytes than were sent")
            return data

        return read

    def _whole(self, media: int) -> bool:
        return len(self._chunks[media]) == self._sources[media].num_bytes


async def _receive(
    requests: AsyncIterator[pb.EncodeRequest],
    inbox: MediaInbox,
    submit: Callable[[int], None],
    results: "asyncio.Queue[EncodeResult | BaseException]",
) -> None:
    """Submit each media's items once its bytes are there; what goes wrong surfaces as a result."""
    try:
        for media in inbox.complete:
            submit(media)
        while inbox.pending:
            request = await anext(requests, None)
            if request is None:
                raise InvalidRecord("the call ended before all announced media had arrived")
            if inbox.add(request.chunk):
                submit(request.chunk.media)
    except Exception as error:
        results.put_nowait(error)


def _reply(result: EncodeResult, arrived: float) -> pb.EncodeReply:
    reply = pb.EncodeReply(
        item_index=result.item_index,
        times=wire.stage_times_to_pb(result.times, arrived),
        cached=result.cached,
        since_arrival=time.monotonic() - arrived,
    )
    if result.ref is not None:
        reply.ref.CopyFrom(wire.embedding_ref_to_pb(result.ref))
    elif result.error is not None:
        reply.failure.CopyFrom(wire.failure_to_pb(result.error))
    return reply
