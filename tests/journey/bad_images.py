"""Images that must be refused, each for its own reason."""

import io
import struct
import zlib
from dataclasses import dataclass

from tests.journey.conversations import picture, png


@dataclass(frozen=True)
class BadImage:
    data: bytes
    kind: str  # what the data URI claims


def _jpeg() -> bytes:
    out = io.BytesIO()
    picture(2, (112, 112)).save(out, "JPEG", quality=90)
    return out.getvalue()


def _huge_png_header() -> bytes:
    """A PNG whose header claims 60,000 x 60,000 pixels."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def _lying_png() -> bytes:
    """A whole PNG whose header claims twice the height that its pixels fill."""
    data = bytearray(png(picture(3, (84, 84))))
    header = bytearray(data[12:29])  # IHDR and its fields
    header[8:12] = struct.pack(">I", 168)
    data[12:29] = header
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(header)))
    return bytes(data)


def _flipped(data: bytes) -> bytes:
    """The same length, with the compressed pixels overwritten."""
    middle = len(data) // 2
    return data[:middle] + bytes(64) + data[middle + 64 :]


_PNG = png(picture(4, (112, 112)))

BAD_IMAGES = {
    "corrupt png": BadImage(_flipped(_PNG), "png"),
    "truncated png": BadImage(_PNG[: len(_PNG) // 2], "png"),
    "truncated jpeg": BadImage(_jpeg()[: len(_jpeg()) // 2], "jpeg"),
    "zero bytes": BadImage(b"", "png"),
    "not an image": BadImage(b"<html><body>404</body></html>", "png"),
    "random bytes": BadImage(bytes(range(256)) * 8, "jpeg"),
    "absurdly large": BadImage(_huge_png_header(), "png"),
    "lies about its height": BadImage(_lying_png(), "png"),
}
