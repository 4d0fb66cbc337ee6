"""Segments of a JPEG: size, orientation, and the file without anything but its picture."""

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from triptych.multimodal.header import MAX_PIECES, MediaHeader, corrupt, oriented_header, truncated, unsupported
from triptych.multimodal.orientation import orientation_of

MAGIC = b"\xff\xd8\xff"

_APP0, _APP1, _APP14, _APP15, _COMMENT = 0xE0, 0xE1, 0xEE, 0xEF, 0xFE
_SCAN, _END = 0xDA, 0xD9
_RESTARTS = range(0xD0, 0xD8)  # no payload; stray ones are ignored
_TABLES = (0xC4, 0xCC, 0xDB, 0xDC, 0xDD, 0xDF)
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_DECODED_FRAMES = {0xC0, 0xC1, 0xC2, 0xC9, 0xCA}  # baseline, extended, progressive; the last two arithmetic-coded
_BETWEEN_SCANS = {*_TABLES, *range(_APP0, _APP15 + 1), _SCAN, _COMMENT}
_WITH_PAYLOAD = _BETWEEN_SCANS | _FRAMES

# Progressive files have about ten. Each one walks over the whole picture, so that a few megabytes of tiny scans would
# keep a decoder busy for hours.
MAX_SCANS = 128

_ADOBE, _ADOBE_BYTES = b"Adobe", 12  # a version, two words of flags and the transform follow the name
_EXIF, _XMP = b"Exif\x00\x00", b"http://ns.adobe.com/xap/1.0/\x00"
_MARKER = re.compile(rb"\xff([\x01-\xfe])")  # skips padding, and whatever lies between segments
_MARKER_IN_SCAN = re.compile(rb"\xff([\x01-\xcf\xd8-\xfe])")  # restarts belong to the scan


class Coding(NamedTuple):
    """How a JPEG's samples are coded, as its headers tell."""

    frame: int  # second byte of the frame's marker: 0xC0 baseline, 0xC1 extended, 0xC2 progressive, more arithmetic
    precision: int  # bits of a sample
    components: tuple[int, ...]  # their ids
    adobe_transform: int | None  # of an Adobe segment: 0 RGB or CMYK, 1 YCbCr, 2 YCCK; None without one


class _Segment(NamedTuple):
    marker: int
    start: int  # of the marker
    begin: int  # of the payload
    end: int


def read_header(data: bytes, most_segments: int = MAX_PIECES) -> MediaHeader:
    """Raises InvalidMedia when there is no frame of a supported kind before the first scan, or it is too far down."""
    exif: list[bytes] = []
    xmp = b""
    size: tuple[int, int] | None = None
    for segment in _segments(data, most_segments):
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


def coding(data: bytes) -> Coding:
    """For who reads only some kinds. Raises InvalidMedia as `read_header` does."""
    frame: tuple[int, int, tuple[int, ...]] | None = None
    transform: int | None = None
    for marker, _, begin, end in _segments(data):
        if marker in _FRAMES:
            _frame_size(marker, data[begin:end])
            frame = (marker, data[begin], tuple(data[begin + 6 : begin + 6 + 3 * data[begin + 5] : 3]))
        elif marker == _APP14 and data.startswith(_ADOBE, begin, end) and end - begin >= _ADOBE_BYTES:
            transform = data[begin + _ADOBE_BYTES - 1]
    if frame is None:
        raise corrupt("jpeg", "a scan comes before the frame header")
    return Coding(*frame, transform)


def pixels_only(data: bytes) -> bytes:
    """The same picture without metadata, thumbnails and further images: a decoder meets nothing it could trip over.

    JFIF and Adobe segments stay, since they tell what the components mean. Raises InvalidMedia when the picture has no
    end, holds what does not belong into it, or has too many scans.
    """
    kept = [data[:2]]
    for marker, start, _, end in _segments(data):
        if marker == _SCAN:
            kept.append(data[start : _end_of_picture(data, end)])
        elif marker in (_APP0, _APP14) or not (_APP0 < marker <= _APP15 or marker == _COMMENT):
            kept.append(data[start:end])
    return b"".join(kept)


def _segments(data: bytes, most: int = MAX_PIECES) -> Iterator[_Segment]:
    """The segments that have a payload, up to and including the first scan's header."""
    position = 2
    for _ in range(most):
        found = _MARKER.search(data, position)
        if found is None:
            raise truncated("jpeg", "its headers")
        marker, position = found[1][0], found.end()
        if marker in _RESTARTS:
            continue
        if marker not in _WITH_PAYLOAD:
            raise corrupt("jpeg", f"unexpected marker 0x{marker:02x} before the first scan")
        begin, position = position + 2, _end_of_segment(data, marker, position)
        yield _Segment(marker, found.start(), begin, position)
        if marker == _SCAN:
            return
    raise corrupt("jpeg", f"it has more than {most} segments before its first scan")


def _end_of_segment(data: bytes, marker: int, position: int) -> int:
    """Where the segment ends whose length stands at a position."""
    if position + 2 > len(data):
        raise truncated("jpeg", f"segment 0x{marker:02x}")
    (length,) = struct.unpack_from(">H", data, position)
    if length < 2:
        raise corrupt("jpeg", f"segment 0x{marker:02x} has length {length}")
    if position + length > len(data):
        raise truncated("jpeg", f"segment 0x{marker:02x}")
    return position + int(length)


def _end_of_picture(data: bytes, position: int) -> int:
    """Where the picture ends, from behind its first scan's header."""
    scans = 1
    for _ in range(MAX_PIECES):
        found = _MARKER_IN_SCAN.search(data, position)
        if found is None:
            raise truncated("jpeg", "its picture")
        marker, position = found[1][0], found.end()
        if marker == _END:
            return position
        if marker not in _BETWEEN_SCANS:
            raise corrupt("jpeg", f"marker 0x{marker:02x} in its picture")
        position = _end_of_segment(data, marker, position)
        scans += marker == _SCAN
        if scans > MAX_SCANS:
            raise corrupt("jpeg", f"it has more than {MAX_SCANS} scans")
    raise corrupt("jpeg", f"it has more than {MAX_PIECES} segments in its picture")


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
