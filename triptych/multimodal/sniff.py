"""The first look at an image: format, size and orientation from its bytes, without decoding a pixel.

Containers are walked here, marker by marker, and no imaging library is involved: lazily read metadata would decode
whole images (a PNG whose EXIF follows its image data), and the router must never decode strangers' pixels.
`canonical.to_rgb` starts from the same answer, so both always agree about a file.
"""

from triptych.errors import InvalidMedia
from triptych.multimodal import avif, gif, jpeg, png, webp
from triptych.multimodal.header import ImageFormat, MediaHeader

__all__ = ["ImageFormat", "MediaHeader", "glance", "sniff"]

SUPPORTED = "JPEG, PNG, WebP, AVIF and GIF"

_GLANCE_BYTES = 32 << 10
_GLANCE_SEGMENTS = 64

_FOREIGN = (
    (b"BM", "BMP"),
    (b"II\x2a\x00", "TIFF"),
    (b"MM\x00\x2a", "TIFF"),
    (b"\x00\x00\x01\x00", "ICO"),
    (b"%PDF", "PDF"),
    (b"8BPS", "PSD"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\x00\x00\x00\x0cJXL ", "JPEG XL"),
    (b"\x00\x00\x00\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
)
_BRANDS = {b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIF", b"msf1": "HEIF"}


def sniff(data: bytes) -> MediaHeader:
    """What the file says about itself.

    Takes time in proportion to the number of segments, chunks or blocks (which is limited), not to the pixels.
    Raises InvalidMedia with a reason for people: code `unsupported_image_format` when it is some other kind of file,
    `invalid_image` when it is empty, truncated, corrupt or has no pixels.
    """
    if not data:
        raise InvalidMedia("the image is empty: it has 0 bytes")
    if data.startswith(jpeg.MAGIC):
        return jpeg.read_header(data)
    if data.startswith(png.MAGIC):
        return png.read_header(data)
    if webp.is_webp(data):
        return webp.read_header(data)
    if data.startswith(gif.MAGICS):
        return gif.read_header(data)
    if avif.is_avif(data):
        return avif.read_header(data)
    raise InvalidMedia(f"the file is {_guess(data)}; supported are {SUPPORTED}", code="unsupported_image_format")


def glance(data: bytes) -> MediaHeader | None:
    """What `sniff` says, where so little has to be read for it that nobody waits; None where it takes a real look.

    Of a JPEG, nothing behind the head of its first scan counts, and that mostly stands within the first kilobytes.
    """
    if not data.startswith(jpeg.MAGIC):
        return None
    try:
        return jpeg.read_header(data[:_GLANCE_BYTES], _GLANCE_SEGMENTS)
    except InvalidMedia:
        return None  # maybe only cut off here


def _guess(data: bytes) -> str:
    """What an unsupported file seems to be, in words."""
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], "a video or an unknown ISO media file")
    for magic, name in _FOREIGN:
        if data.startswith(magic):
            return name
    start = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if b"<svg" in start:
        return "SVG"
    if start.startswith((b"<!doctype html", b"<html")):
        return "an HTML page"
    return f"not an image that is known here (it starts with {data[:8].hex(' ')})"
