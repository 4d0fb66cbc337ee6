"""`data:` URIs of images: strict base64, nothing else."""

import asyncio
import binascii
import re
import string

from triptych.errors import InvalidMedia, MediaTooLarge

try:
    import pybase64  # thirty times as fast: what it refuses, the standard library refuses too, or knows better
except ImportError:
    pybase64 = None

_HEADER = re.compile(r"data:(?P<type>[^;,]*)(?P<parameters>(?:;[^;,]*)*),", re.IGNORECASE)
_LONGEST_HEADER = 256
_SLICE_CHARACTERS = 1 << 20  # a multiple of 4; the interpreter is held no longer than one slice takes
_FAST_CHARACTERS = 16 << 20  # what the fast decoder does in a millisecond
_NO_WHITESPACE = str.maketrans("", "", string.whitespace)


def is_data_uri(url: str) -> bool:
    return url[:5].lower() == "data:"


async def read_data_uri(url: str, max_bytes: int) -> bytes:
    """The bytes of an image. Raises InvalidMedia for another form or bad base64, MediaTooLarge."""
    begin = _check_header(url)
    data = _decode_fast(url, begin) if len(url) < _FAST_CHARACTERS else None
    if data is not None:
        _check_size(len(data), max_bytes)
        return data
    if len(url) < _SLICE_CHARACTERS:
        return _decode(url, begin, max_bytes)
    return await asyncio.to_thread(_decode, url, begin, max_bytes)


def _check_header(url: str) -> int:
    """Where the payload begins."""
    header = _HEADER.match(url[:_LONGEST_HEADER])
    if header is None:
        raise _invalid("the data URI has no comma behind its media type")
    if not header["type"].strip().lower().startswith("image/"):
        raise _invalid(f"the data URI is of type {header['type'][:40]!r}, expected image/...")
    if not header["parameters"].lower().endswith(";base64"):
        raise _invalid("the data URI is not in base64")
    return header.end()


def _decode_fast(url: str, begin: int) -> bytes | None:
    """None where it takes the slow decoder to say what is wrong, or that nothing is."""
    if pybase64 is None:
        return None
    try:
        data: bytes = pybase64.b64decode(url[begin:], validate=True)
    except ValueError:
        return None
    return data


def _decode(url: str, begin: int, max_bytes: int) -> bytes:
    try:
        return _decode_strictly(url, begin, max_bytes)
    except binascii.Error as error:
        payload = url[begin:].translate(_NO_WHITESPACE)  # mail-like clients break lines
        if len(payload) == len(url) - begin:
            raise _invalid(f"the data URI holds malformed base64: {error}") from None
    try:
        return _decode_strictly(payload, 0, max_bytes)
    except binascii.Error as error:
        raise _invalid(f"the data URI holds malformed base64: {error}") from None


def _decode_strictly(text: str, begin: int, max_bytes: int) -> bytes:
    """Raises binascii.Error for anything but a whole, padded run of the alphabet."""
    pieces, num_bytes = [], 0
    for start in range(begin, len(text), _SLICE_CHARACTERS):
        characters = text[start : start + _SLICE_CHARACTERS]
        try:
            piece = binascii.a2b_base64(characters, strict_mode=True)
        except ValueError as error:  # not ASCII
            raise (
                error if isinstance(error, binascii.Error) else binascii.Error("a character outside the alphabet")
            ) from None
        is_last = start + _SLICE_CHARACTERS >= len(text)
        if not is_last and len(piece) * 4 != len(characters) * 3:
            raise binascii.Error("padding before the end")
        num_bytes += len(piece)
        _check_size(num_bytes, max_bytes)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _check_size(num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise MediaTooLarge(f"the image has more than {max_bytes} bytes")


def _invalid(message: str) -> InvalidMedia:
    return InvalidMedia(message, code="invalid_image_url")
