"""Blocks of a GIF up to its first picture. A GIF has no orientation."""

import re
import struct
from dataclasses import dataclass

from triptych.multimodal.header import MAX_PIECES, MediaHeader, corrupt, oriented_header, truncated

MAGICS = (b"GIF87a", b"GIF89a")

_EXTENSION, _PICTURE, _TRAILER = b"!", b",", b";"
_GRAPHIC_CONTROL = 0xF9
_BLOCK = re.compile(rb"[!,;]")
_SCREEN_BYTES, _DESCRIPTOR_BYTES = 13, 9


@dataclass(frozen=True, slots=True)
class FirstFrame:
    """The first picture as a GIF of its own, and where on the canvas it belongs."""

    data: bytes
    left: int
    top: int
    width: int
    height: int


def read_header(data: bytes) -> MediaHeader:
    """Raises InvalidMedia when there is no first picture.

    The canvas is the logical screen, widened where the first picture reaches over it.
    """
    if len(data) < _SCREEN_BYTES:
        raise truncated("gif", "its header")
    width, height = struct.unpack_from("<HH", data, 6)
    at, _ = _find_picture(data)
    left, top, frame_width, frame_height = struct.unpack_from("<4H", data, at)
    if frame_width == 0 or frame_height == 0:
        raise corrupt("gif", f"its first picture has {frame_width}x{frame_height} pixels")
    return oriented_header("gif", max(width, left + frame_width), max(height, top + frame_height), frames_hint=0)


def first_frame(data: bytes) -> FirstFrame:
    """The first picture alone, for a decoder that should see nothing else."""
    at, control = _find_picture(data)
    left, top, width, height = struct.unpack_from("<4H", data, at)
    screen = data[:6] + struct.pack("<HH", width, height) + data[10:_SCREEN_BYTES]
    palette = data[_SCREEN_BYTES : _SCREEN_BYTES + _palette_bytes(data[10])]
    descriptor = _PICTURE + struct.pack("<4H", 0, 0, width, height)
    return FirstFrame(screen + palette + control + descriptor + data[at + 8 :], left, top, width, height)


def _find_picture(data: bytes) -> tuple[int, bytes]:
    """Where the first picture's descriptor begins, and the graphic control block that rules it (or nothing)."""
    control = b""
    position = _SCREEN_BYTES + _palette_bytes(data[10])
    pieces = 0
    while pieces < MAX_PIECES:
        found = _BLOCK.search(data, position)
        if found is None:
            raise truncated("gif", "the blocks before its first picture")
        position = found.end()
        if found[0] == _TRAILER:
            raise corrupt("gif", "it has no picture")
        if found[0] == _PICTURE:
            if position + _DESCRIPTOR_BYTES > len(data):
                raise truncated("gif", "its first picture's descriptor")
            return position, control
        begin, position, count = _skip_blocks(data, position + 1, MAX_PIECES - pieces)
        pieces += count + 1
        # Extension: "!", label, then blocks; the control block is one of four bytes.
        if data[begin - 1] == _GRAPHIC_CONTROL and data[begin] >= 4:
            control = _EXTENSION + bytes([_GRAPHIC_CONTROL, 4]) + data[begin + 1 : begin + 5] + b"\x00"
    raise corrupt("gif", f"it has more than {MAX_PIECES} blocks before its first picture")


def _skip_blocks(data: bytes, begin: int, limit: int) -> tuple[int, int, int]:
    """Where the data blocks begin, where they end, and how many (at most limit) there are."""
    position = begin
    for count in range(limit + 1):
        if position >= len(data):
            raise truncated("gif", "an extension")
        length = data[position]
        position += 1 + length
        if length == 0:
            return begin, position, count
    return begin, position, limit


def _palette_bytes(flags: int) -> int:
    """Size of the palette that follows, by the flags of a screen or a picture."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0
