"""Small images in every container and mode, made here so that each byte of their metadata is known."""

import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, PngImagePlugin

Pixels = npt.NDArray[np.uint8]

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
WIDTH, HEIGHT = 48, 32
CORNERS = ((220, 40, 40), (40, 200, 60), (40, 60, 220), (240, 230, 60))  # in reading order


def quadrants(width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    """Four colours, one per quarter: every orientation of it looks different."""
    image = Image.new("RGB", (width, height))
    for number, colour in enumerate(CORNERS):
        x, y = number % 2 * (width // 2), number // 2 * (height // 2)
        image.paste(colour, (x, y, x + width // 2, y + height // 2))
    return image


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(kind: bytes, payload: bytes) -> bytes:
    return struct.pack(">L", len(payload)) + kind + payload + struct.pack(">L", zlib.crc32(kind + payload))


def png(
    width: int,
    height: int,
    depth: int,
    colour: int,
    rows: bytes,
    *,
    before: bytes = b"",
    after: bytes = b"",
    interlace: int = 0,
) -> bytes:
    """A PNG of filtered rows, with chunks before and after its image data."""
    header = struct.pack(">LLBBBBB", width, height, depth, colour, 0, 0, interlace)
    data = chunk(b"IDAT", zlib.compress(rows))
    return PNG_MAGIC + chunk(b"IHDR", header) + before + data + after + chunk(b"IEND", b"")


def unfiltered(samples: npt.NDArray[Any]) -> bytes:
    """Rows of a PNG from samples [height, ...]: no filter, big-endian."""
    wide = samples.astype(samples.dtype.newbyteorder(">"))
    return b"".join(b"\x00" + row.tobytes() for row in wide)


def with_late_chunks(data: bytes, *chunks: bytes) -> bytes:
    """A PNG with chunks between its image data and its end."""
    return data[:-12] + b"".join(chunks) + data[-12:]


def tiff(value: int, order: str = "<", kind: int = 3) -> bytes:
    """A TIFF whose first directory has a maker and the Orientation tag."""
    code = {1: "BBBB", 3: "HH", 4: "L"}[kind]
    padded = struct.pack(order + code, value, *[0] * (len(code) - 1))
    maker = struct.pack(order + "HHL4s", 271, 2, 4, b"abc\0")
    entry = struct.pack(order + "HHL", 274, kind, 1) + padded
    magic = b"II\x2a\x00" if order == "<" else b"MM\x00\x2a"
    return magic + struct.pack(order + "LH", 8, 2) + maker + entry + bytes(4)


def exif(value: int, order: str = "<") -> bytes:
    return b"Exif\x00\x00" + tiff(value, order)


def xmp(value: int, *, element: bool = False) -> bytes:
    body = f"<tiff:Orientation>{value}</tiff:Orientation>" if element else ""
    attribute = "" if element else f' tiff:Orientation="{value}"'
    return (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        f'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/"{attribute}>{body}</rdf:Description>'
        "</rdf:RDF></x:xmpmeta>"
    ).encode()


def jpeg_with_segments(data: bytes, *payloads: bytes) -> bytes:
    """A JPEG with APP1 segments right behind its start."""
    segments = [b"\xff\xe1" + struct.pack(">H", 2 + len(payload)) + payload for payload in payloads]
    return data[:2] + b"".join(segments) + data[2:]


def jpeg_xmp_payload(value: int) -> bytes:
    return b"http://ns.adobe.com/xap/1.0/\x00" + xmp(value)


def text_chunk(keyword: bytes, text: bytes, *, packed: bool = False) -> bytes:
    body = zlib.compress(text) if packed else text
    return chunk(b"iTXt", keyword + (b"\x00\x01\x00" if packed else b"\x00\x00\x00") + b"\x00\x00" + body)


def raw_profile_chunk(record: bytes) -> bytes:
    text = f"\nexif\n{len(record):8}\n{record.hex()}\n".encode()
    return chunk(b"zTXt", b"Raw profile type exif\x00\x00" + zlib.compress(text))


def animated(kind: str, **options: Any) -> bytes:
    """Three frames: the quadrants, then grey, then black."""
    rest = [Image.new("RGB", (WIDTH, HEIGHT), (value, value, value)) for value in (128, 0)]
    return saved(quadrants(), kind, save_all=True, append_images=rest, duration=50, loop=0, **options)


def _info(key: str, text: bytes) -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add_itxt(key, text)
    return info


# Ways to write an orientation down, by name: each takes the value and returns a whole file of the quadrants.
ORIENTED: dict[str, Callable[[int], bytes]] = {
    "jpeg exif": lambda n: saved(quadrants(), "JPEG", quality=95, exif=exif(n)),
    "jpeg exif big-endian": lambda n: saved(quadrants(), "JPEG", quality=95, exif=exif(n, ">")),
    "jpeg exif progressive": lambda n: saved(quadrants(), "JPEG", quality=95, progressive=True, exif=exif(n)),
    "jpeg cmyk exif": lambda n: saved(quadrants().convert("CMYK"), "JPEG", quality=95, exif=exif(n)),
    "jpeg xmp": lambda n: jpeg_with_segments(saved(quadrants(), "JPEG", quality=95), jpeg_xmp_payload(n)),
    "png exif": lambda n: saved(quadrants(), "PNG", exif=exif(n)),
    "png late exif": lambda n: with_late_chunks(saved(quadrants(), "PNG"), chunk(b"eXIf", tiff(n))),
    "png raw profile": lambda n: with_late_chunks(saved(quadrants(), "PNG"), raw_profile_chunk(exif(n))),
    "png xmp": lambda n: saved(quadrants(), "PNG", pnginfo=_info("XML:com.adobe.xmp", xmp(n))),
    "png late xmp": lambda n: with_late_chunks(
        saved(quadrants(), "PNG"), text_chunk(b"XML:com.adobe.xmp", xmp(n, element=True))
    ),
    "png packed xmp": lambda n: with_late_chunks(
        saved(quadrants(), "PNG"), text_chunk(b"XML:com.adobe.xmp", xmp(n), packed=True)
    ),
    "webp exif": lambda n: saved(quadrants(), "WEBP", quality=95, exif=exif(n)),
    "webp bare exif": lambda n: saved(quadrants(), "WEBP", quality=95, exif=tiff(n)),
    "webp lossless exif": lambda n: saved(quadrants(), "WEBP", lossless=True, exif=exif(n)),
    "webp alpha exif": lambda n: saved(quadrants().convert("RGBA"), "WEBP", lossless=True, exact=True, exif=exif(n)),
    "webp xmp": lambda n: saved(quadrants(), "WEBP", quality=95, xmp=xmp(n)),
    "webp animated exif": lambda n: animated("WEBP", quality=95, exif=exif(n)),
}


def plain_files() -> dict[str, bytes]:
    """One sound file of every kind, for tests that break them."""
    base = quadrants()
    palette = base.quantize(8)
    grey16 = Image.fromarray(np.linspace(0, 65535, 48 * 32).reshape(32, 48).astype(np.uint16))
    files = {
        "jpeg": saved(base, "JPEG"),
        "jpeg progressive": saved(base, "JPEG", progressive=True),
        "jpeg grey": saved(base.convert("L"), "JPEG"),
        "jpeg cmyk": saved(base.convert("CMYK"), "JPEG"),
        "png": saved(noise(20, 10), "PNG"),
        "png rgba": saved(noise(20, 10).convert("RGBA"), "PNG"),
        "png la": saved(base.convert("LA"), "PNG"),
        "png 1 bit": saved(base.convert("1"), "PNG"),
        "png palette": saved(palette, "PNG", transparency=2),
        "png 16 bit": saved(grey16, "PNG"),
        "png animated": animated("PNG"),
        "webp": saved(noise(20, 10), "WEBP"),
        "webp lossless": saved(base, "WEBP", lossless=True),
        "webp animated": animated("WEBP"),
        "gif": saved(palette, "GIF"),
        "gif animated": animated("GIF"),
    }
    return files | {name: make(6) for name, make in ORIENTED.items()}
