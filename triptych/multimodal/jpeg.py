"""Segments of a JPEG up to its first scan: size, orientation, and the file without anything but its picture."""

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from triptych.multimodal.header import MAX_PIECES, MediaHeader, corrupt, oriented_header, truncated, unsupported
from triptych.multimodal.orientation import orientation_of

MAGIC = b"\xff\xd8\xff"

_APP0, _APP1, _APP14, _APP15, _COMMENT = 0xE0, 0xE1, 0xEE, 0xEF, 0xFE
_SCAN = 0xDA
_RESTARTS = range(0xD0, 0xD8)  # no payload; stray ones are ignored
_TABLES = (0xC4, 0xCC, 0xDB, 0xDC, 0xDD, 0xDF)
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_DECODED_FRAMES = {0xC0, 0xC1, 0xC2, 0xC9, 0xCA}  # baseline, extended, progressive; the last two arithmetic-coded
_WITH_PAYLOAD = {*_TABLES, *_FRAMES, *range(_APP0, _APP15 + 1), _SCAN, _COMMENT}

_EXIF, _XMP = b"Exif\x00\x00", b"http://ns.adobe.com/xap/1.0/\x00"
_MARKER = re.compile(rb"\xff([\x01-\xfe])")  # skips padding, and whatever lies between segments


class _Segment(NamedTuple):
    marker: int
    start: int  # of the marker
    begin: int  # of the payload
    end: int


def read_header(data: bytes) -> MediaHeader:
    """Raises InvalidMedia when there is no frame of a supported kind before the first scan."""
    exif: list[bytes] = []
    xmp = b""
    size: tuple[int, int] | None = None
    for segment in _segments(data):
        if segment.marker in _FRAMES:
            if size is not None:
                raise corrupt("jpeg", "it has two frame headers")
            size = _frame_size(segment.marker, data[segment.begin : segment.end])
        elif segment.marker == _APP1 and data.startswith(_EXIF, segment.begin, segment.end):
            # A long record goes on in further segments; only the first one's prefix belongs to it.
            exif.append(data[segment.begin + (len(_EXIF) if exif else 0) : segment.end])
        elif segment.marker == _APP1 and data.startswith(_XMP, segment.begin, segment.end):
            xmp = data[segment.begin + len(_XMP) : segment.end]
    if size is None:
        raise corrupt("jpeg", "a scan comes before the frame header")
    return oriented_header("jpeg", *size, orientation_of(b"".join(exif), xmp))


def pixels_only(data: bytes) -> bytes:
    """The same picture without metadata, thumbnails and further images: a decoder meets nothing it could trip over.

    JFIF and Adobe segments stay, since they tell what the components mean.
    """
    kept = [data[:2]]
    for marker, start, _, end in _segments(data):
        if marker == _SCAN:
            kept.append(data[start:])
        elif marker in (_APP0, _APP14) or not (_APP0 < marker <= _APP15 or marker == _COMMENT):
            kept.append(data[start:end])
    return b"".join(kept)


def _segments(data: bytes) -> Iterator[_Segment]:
    """The segments that have a payload, up to and including the first scan's."""
    position = 2
    for _ in range(MAX_PIECES):
        found = _MARKER.search(data, position)
        if found is None:
            raise truncated("jpeg", "its headers")
        marker, position = found[1][0], found.end()
        if marker in _RESTARTS:
            continue
        if marker not in _WITH_PAYLOAD:
            raise corrupt("jpeg", f"unexpected marker 0x{marker:02x} before the first scan")
        if position + 2 > len(data):
            raise truncated("jpeg", f"segment 0x{marker:02x}")
        (length,) = struct.unpack_from(">H", data, position)
        if length < 2:
            raise corrupt("jpeg", f"segment 0x{marker:02x} has length {length}")
        segment = _Segment(marker, found.start(), position + 2, position + length)
        position = segment.end
        if position > len(data):
            raise truncated("jpeg", f"segment 0x{marker:02x}")
        yield segment
        if marker == _SCAN:
            return
    raise corrupt("jpeg", f"it has more than {MAX_PIECES} segments before its first scan")


def _frame_size(marker: int, frame: bytes) -> tuple[int, int]:
    """Width and height of a frame header."""
    if len(frame) < 6 or len(frame) < 6 + 3 * frame[5]:
        raise corrupt("jpeg", f"its frame header has {len(frame)} bytes")
    precision, height, width, components = struct.unpack_from(">BHHB", frame)
    if marker not in _DECODED_FRAMES:
        raise unsupported("jpeg", "lossless or hierarchical coding")
    if precision != 8:
        raise unsupported("jpeg", f"{precision}-bit samples")
    if components not in (1, 3, 4):
        raise unsupported("jpeg", f"{components} components")
    return width, height
