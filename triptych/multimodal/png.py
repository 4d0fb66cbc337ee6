"""Chunks of a PNG: size, orientation, checksums, and the file without anything but its picture."""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from triptych.multimodal.header import MAX_PIECES, MediaHeader, corrupt, oriented_header, truncated
from triptych.multimodal.orientation import orientation_of

MAGIC = b"\x89PNG\r\n\x1a\n"

_GREY, _RGB, _PALETTE, _GREY_ALPHA, _RGB_ALPHA = 0, 2, 3, 4, 6
_DEPTHS_BY_COLOUR = {
    _GREY: (1, 2, 4, 8, 16),
    _RGB: (8, 16),
    _PALETTE: (1, 2, 4, 8),
    _GREY_ALPHA: (8, 16),
    _RGB_ALPHA: (8, 16),
}
_CHANNELS_BY_COLOUR = {_GREY: 1, _RGB: 3, _PALETTE: 1, _GREY_ALPHA: 2, _RGB_ALPHA: 4}
_CRITICAL = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
_INTERLACE = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))

_XMP_KEYWORD = b"XML:com.adobe.xmp"
_EXIF_KEYWORD = b"Raw profile type exif"
_MAX_TEXT_BYTES = 1 << 20  # uncompressed; a longer text counts as absent
_INFLATE_STEP = 1 << 18


class _Chunk(NamedTuple):
    kind: bytes
    begin: int  # of the payload
    end: int  # the checksum's four bytes follow


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What IHDR says."""

    width: int
    height: int
    depth: int
    colour: int
    interlaced: bool

    @property
    def inflated_bytes(self) -> int:
        """Size of the image data before compression: filtered rows of every pass."""
        bits = self.depth * _CHANNELS_BY_COLOUR[self.colour]
        passes = _INTERLACE if self.interlaced else ((0, 0, 1, 1),)
        total = 0
        for left, top, step_x, step_y in passes:
            columns, rows = -(-(self.width - left) // step_x), -(-(self.height - top) // step_y)
            if columns > 0 and rows > 0:
                total += rows * (1 + (columns * bits + 7) // 8)
        return total


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG's picture alone.

    data: a PNG of header, palette, palette transparency and image data
    key:  the one sample (grey) or three (RGB) that mean transparent; empty where there is none
    """

    data: bytes
    header: ImageHeader
    key: tuple[int, ...]


def read_header(data: bytes) -> MediaHeader:
    """Raises InvalidMedia when chunks are missing, cut or in an order the format forbids.

    EXIF is read from eXIf, wherever it is, else from the text older writers use; XMP from its text.
    """
    image, chunks = _parse(data)
    last = {chunk.kind: chunk for chunk in chunks}
    exif = b""
    if b"eXIf" in last:
        exif = b"Exif\x00\x00" + _checked(data, last[b"eXIf"])
    else:
        exif = _legacy_exif(_text(data, chunks, _EXIF_KEYWORD))
    xmp = _text(data, chunks, _XMP_KEYWORD)
    frames = 1
    if b"acTL" in last:
        frames = int.from_bytes(_checked(data, last[b"acTL"])[:4], "big") or 1
    return oriented_header("png", image.width, image.height, orientation_of(exif, xmp), frames)


def picture(data: bytes) -> Picture:
    """The picture alone, every checksum verified. Raises InvalidMedia where one is wrong."""
    header, chunks = _parse(data)
    for chunk in chunks:
        _checked(data, chunk)
    kept = [data[: chunks[0].end + 4]]
    key: tuple[int, ...] = ()
    colours = 0
    for chunk in chunks[1:]:
        if chunk.kind == b"PLTE" and header.colour == _PALETTE:
            colours = (chunk.end - chunk.begin) // 3
            kept.append(_encoded(b"PLTE", data[chunk.begin : chunk.begin + 3 * colours]))
        elif chunk.kind == b"tRNS" and header.colour == _PALETTE:
            kept.append(_encoded(b"tRNS", data[chunk.begin : min(chunk.end, chunk.begin + colours)]))
        elif chunk.kind == b"tRNS":
            key = _transparent_key(header, data[chunk.begin : chunk.end])
        elif chunk.kind in (b"IDAT", b"IEND"):
            kept.append(data[chunk.begin - 8 : chunk.end + 4])
    return Picture(b"".join(kept), header, key)


def holds_all_rows(found: Picture) -> bool:
    """Whether the image data inflates to as much as the header asks for; inflates it all, a piece at a time."""
    missing = found.header.inflated_bytes
    inflater = zlib.decompressobj()
    try:
        for kind, begin, end in _walk(found.data):
            piece = found.data[begin:end] if kind == b"IDAT" else b""
            while piece and missing > 0:
                missing -= len(inflater.decompress(piece, _INFLATE_STEP))
                piece = inflater.unconsumed_tail
        if missing > 0:
            missing -= len(inflater.flush())  # the rest of a match that the last step cut
    except zlib.error:
        return False
    return missing <= 0


def _parse(data: bytes) -> tuple[ImageHeader, list[_Chunk]]:
    """The header, and all chunks up to IEND, in an order that the format allows."""
    chunks = list(_walk(data))
    kinds = [chunk.kind for chunk in chunks]
    if kinds[0] != b"IHDR" or kinds.count(b"IHDR") != 1:
        raise corrupt("png", f"it starts with chunk {kinds[0]!r}, or has two headers")
    header = _image_header(_checked(data, chunks[0]))
    if b"IDAT" not in kinds:
        raise corrupt("png", "it has no image data")
    first, count = kinds.index(b"IDAT"), kinds.count(b"IDAT")
    if kinds[first : first + count] != [b"IDAT"] * count:
        raise corrupt("png", "other chunks lie between its image data")
    if kinds.count(b"PLTE") > 1 or kinds.count(b"tRNS") > 1 or {b"PLTE", b"tRNS"} & {*kinds[first:]}:
        raise corrupt("png", "its palette or transparency comes twice, or behind the image data")
    if header.colour == _PALETTE and b"PLTE" not in kinds:
        raise corrupt("png", "it has no palette")
    return header, chunks


def _walk(data: bytes) -> Iterator[_Chunk]:
    position = len(MAGIC)
    for _ in range(MAX_PIECES):
        begin = position + 8
        if begin > len(data):
            raise truncated("png", f"byte {len(data)}, before its last chunk")
        length = int.from_bytes(data[position : position + 4], "big")
        kind = data[position + 4 : begin]
        if not (kind.isalpha() and kind.isascii()):
            raise corrupt("png", f"chunk type {kind!r}")
        if kind not in _CRITICAL and kind[:1].isupper():
            raise corrupt("png", f"unknown critical chunk {kind!r}")
        position = begin + length + 4
        if position > len(data):
            raise truncated("png", f"chunk {kind!r}")
        yield _Chunk(kind, begin, begin + length)
        if kind == b"IEND":
            return
    raise corrupt("png", f"it has more than {MAX_PIECES} chunks")


def _checked(data: bytes, chunk: _Chunk) -> bytes:
    """The chunk's payload. Raises InvalidMedia when its checksum is wrong."""
    kind, begin, end = chunk
    view = memoryview(data)
    if zlib.crc32(view[begin - 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
        raise corrupt("png", f"chunk {kind!r} has a wrong checksum")
    return data[begin:end]


def _encoded(kind: bytes, payload: bytes) -> bytes:
    return struct.pack(">L", len(payload)) + kind + payload + struct.pack(">L", zlib.crc32(kind + payload))


def _image_header(payload: bytes) -> ImageHeader:
    if len(payload) != 13:
        raise corrupt("png", f"its header has {len(payload)} bytes")
    width, height, depth, colour, compression, filtering, interlace = struct.unpack(">LLBBBBB", payload)
    if depth not in _DEPTHS_BY_COLOUR.get(colour, ()):
        raise corrupt("png", f"it has colour type {colour} at {depth} bits")
    if compression or filtering or interlace > 1:
        raise corrupt("png", f"compression {compression}, filter {filtering}, interlace {interlace} do not exist")
    if max(width, height) >= 1 << 31:
        raise corrupt("png", f"its header says {width}x{height} pixels")
    return ImageHeader(width, height, depth, colour, bool(interlace))


def _transparent_key(header: ImageHeader, payload: bytes) -> tuple[int, ...]:
    count = {_GREY: 1, _RGB: 3}.get(header.colour, 0)
    if len(payload) < 2 * count:
        raise corrupt("png", f"its transparency chunk has {len(payload)} bytes")
    mask = (1 << header.depth) - 1  # of samples narrower than 16 bits only the low bits count
    return tuple(sample & mask for sample in struct.unpack_from(f">{count}H", payload))


def _text(data: bytes, chunks: list[_Chunk], keyword: bytes) -> bytes:
    """The last text under a keyword; empty when there is none, or none that can be read."""
    for chunk in reversed(chunks):
        if chunk.kind in (b"tEXt", b"zTXt", b"iTXt") and data.startswith(keyword + b"\x00", chunk.begin, chunk.end):
            return _text_value(chunk.kind, _checked(data, chunk)[len(keyword) + 1 :])
    return b""


def _text_value(kind: bytes, body: bytes) -> bytes:
    if kind == b"tEXt":
        return body
    if kind == b"zTXt":
        return _inflated(body[1:]) if body[:1] == b"\x00" else b""
    compressed, method = body[:1] == b"\x01", body[1:2]
    parts = body[2:].split(b"\x00", 2)  # language, translated keyword, text
    if len(parts) < 3 or method != b"\x00":
        return b""
    return _inflated(parts[2]) if compressed else parts[2]


def _inflated(packed: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(packed, _MAX_TEXT_BYTES)
    except zlib.error:
        return b""
    return b"" if inflater.unconsumed_tail else text


def _legacy_exif(text: bytes) -> bytes:
    """EXIF out of `\\nexif\\n  length\\nhex digits in lines`."""
    try:
        return bytes.fromhex(b"".join(text.split(b"\n")[3:]).decode("ascii"))
    except ValueError:
        return b""
