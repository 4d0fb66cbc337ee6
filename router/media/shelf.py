"""A request's source bytes, ready to be sent to encoders as often as it takes."""

import asyncio
from collections.abc import Iterator, Sequence

from triptych import wire
from triptych.journey import Media
from triptych.multimodal.memfd import MediaMemory
from triptych.pb import encoder_pb2

_WRITE_IN_THREAD_BYTES = 1 << 20


class MediaShelf:
    """Holds the bytes until it is closed; on one host they are written once, into shared memory, for all encoders."""

    def __init__(self, media: Sequence[Media]) -> None:
        self._media = media
        self._memories: dict[int, MediaMemory] = {}

    def close(self) -> None:
        memories, self._memories = self._memories, {}
        for memory in memories.values():
            memory.close()

    async def source(self, index: int, by_memfd: bool) -> encoder_pb2.MediaSource:
        """How an encoder gets at one source; without memfd, `chunks` must follow. Raises TransferFailed."""
        media = self._media[index]
        source = encoder_pb2.MediaSource(index=index, num_bytes=len(media.data), digest=media.digest)
        if by_memfd:
            where = (await self._memory(media)).descriptor
            source.memfd.CopyFrom(encoder_pb2.Memfd(host_id=where.host_id, pid=where.pid, fd=where.fd))
        return source

    def chunks(self, index: int) -> Iterator[encoder_pb2.MediaChunk]:
        data = memoryview(self._media[index].data)
        for offset in range(0, len(data), wire.MEDIA_CHUNK_BYTES):
            piece = bytes(data[offset : offset + wire.MEDIA_CHUNK_BYTES])
            yield encoder_pb2.MediaChunk(media=index, offset=offset, data=piece)

    async def _memory(self, media: Media) -> MediaMemory:
        if media.index not in self._memories:
            if len(media.data) < _WRITE_IN_THREAD_BYTES:
                memory = MediaMemory(media.data)
            else:
                memory = await asyncio.to_thread(MediaMemory, media.data)
            # Another encoder's call may have written it meanwhile; the second copy goes at once.
            if self._memories.setdefault(media.index, memory) is not memory:
                memory.close()
        return self._memories[media.index]
