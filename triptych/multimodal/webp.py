"""Chunks of a WebP: canvas size, orientation, number of frames."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from triptych.multimodal.header import MAX_PIECES, MediaHeader, corrupt, oriented_header, truncated
from triptych.multimodal.orientation import orientation_of

_EXIF_FLAG, _XMP_FLAG, _ANIMATION_FLAG = 0x08, 0x04, 0x02


class _Chunk(NamedTuple):
    kind: bytes
    begin: int
    end: int


def is_webp(data: bytes) -> bool:
    return data.startswith(b"RIFF") and data[8:12] == b"WEBP"


def read_header(data: bytes) -> MediaHeader:
    """Raises InvalidMedia when chunks are missing, cut or contradict the format."""
    chunks = _chunks(data)
    first = next(chunks, None)
    if first is None:
        raise truncated("webp", "its header")
    payload = data[first.begin : min(first.end, first.begin + 10)]
    if first.kind == b"VP8 ":
        return oriented_header("webp", *_lossy_size(payload))
    if first.kind == b"VP8L":
        return oriented_header("webp", *_lossless_size(payload))
    if first.kind == b"VP8X":
        return _extended_header(data, payload, chunks)
    raise corrupt("webp", f"its first chunk is {first.kind!r}")


def _extended_header(data: bytes, payload: bytes, chunks: Iterator[_Chunk]) -> MediaHeader:
    """Canvas, metadata and frames of an extended file; metadata counts only where the flags announce it."""
    if len(payload) < 10:
        raise corrupt("webp", f"its VP8X chunk has {len(payload)} bytes")
    flags = payload[0]
    width = int.from_bytes(payload[4:7], "little") + 1
    height = int.from_bytes(payload[7:10], "little") + 1
    found: dict[bytes, bytes] = {}
    frames, images = 0, 0
    for kind, begin, end in chunks:
        if kind in (b"EXIF", b"XMP "):
            found.setdefault(kind, data[begin:end])
        frames += kind == b"ANMF"
        images += kind in (b"VP8 ", b"VP8L")
    if frames + images == 0:
        raise corrupt("webp", "it has no image data")
    exif = found.get(b"EXIF", b"") if flags & _EXIF_FLAG else b""
    xmp = found.get(b"XMP ", b"") if flags & _XMP_FLAG else b""
    frames_hint = frames if flags & _ANIMATION_FLAG else 1
    return oriented_header("webp", width, height, orientation_of(exif, xmp), frames_hint)


def _chunks(data: bytes) -> Iterator[_Chunk]:
    """All chunks that the RIFF header covers; what follows it is not part of the picture."""
    if len(data) < 12:
        raise truncated("webp", "its header")
    (size,) = struct.unpack_from("<L", data, 4)
    total = 8 + size
    if total > len(data):
        raise truncated("webp", f"byte {len(data)} of {total}")
    position = 12
    for _ in range(MAX_PIECES):
        if position + 8 > total:
            return
        kind = data[position : position + 4]
        (length,) = struct.unpack_from("<L", data, position + 4)
        begin = position + 8
        if begin + length > total:
            raise truncated("webp", f"chunk {kind!r}")
        yield _Chunk(kind, begin, begin + length)
        position = begin + length + length % 2
    raise corrupt("webp", f"it has more than {MAX_PIECES} chunks")


def _lossy_size(payload: bytes) -> tuple[int, int]:
    if len(payload) < 10 or payload[0] & 1 or payload[3:6] != b"\x9d\x01\x2a":
        raise corrupt("webp", "its VP8 chunk does not start with a key frame")
    width, height = struct.unpack_from("<HH", payload, 6)
    return width & 0x3FFF, height & 0x3FFF  # the upper two bits ask viewers to scale


def _lossless_size(payload: bytes) -> tuple[int, int]:
    if len(payload) < 5 or payload[0] != 0x2F or payload[4] >> 5:
        raise corrupt("webp", "its VP8L chunk has no signature")
    bits = int.from_bytes(payload[1:5], "little")
    return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
