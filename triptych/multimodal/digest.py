"""What makes two images the same image to the cluster.

An item's digest covers the source bytes, the options they are decoded and processed with, the model's fingerprint and
the tenant's salt, in an encoding in which no two different values share their bytes: every value is
`[tag u8][payload]`, and whatever has no fixed length carries it first.

    01 text   u64 length, UTF-8            05 truth  u8
    02 bytes  u64 length, bytes            20 list   u64 count, values      (tuples too)
    03 int    u8 length, signed            22 map    u64 count, key (text), value; sorted by key
    04 float  f64
    10 image  mode (text), u64 width, u64 height, u64 length, RGBA
    11 array  dtype (text), u8 sides, u64 for each, u64 length, elements in C order, little-endian

All other numbers are big-endian. A new meaning gets a new version in the domain, never the old digests.
"""

import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from triptych.errors import InvalidRecord, InvalidRequest
from triptych.journey import DIGEST_BYTES
from triptych.multimodal.values import ArrayValue, ImageValue, array_value

ITEM_DOMAIN = "triptych.item.v1"
CLIENT_ID_DOMAIN = "triptych.client_id.v1"

OptionValue: TypeAlias = (
    "str | bytes | int | float | bool | ArrayValue | ImageValue | npt.NDArray[Any]"
    " | Sequence[OptionValue] | Mapping[str, OptionValue]"
)

_MAX_INT_BYTES = 255


def source_digest(data: bytes) -> bytes:
    """32 bytes that name these source bytes."""
    return bytes(blake3(data).digest())


def item_digest(
    source: bytes,
    options: Mapping[str, OptionValue],
    fingerprint: bytes,
    salt: bytes = b"",
    client_id: str = "",
) -> bytes:
    """32 bytes that name one item: equal where its embedding rows may be shared.

    source:      digest of the source bytes, 32 bytes
    options:     how they are decoded and processed; the order of keys does not matter
    fingerprint: of the model, 32 bytes
    salt:        of the tenant; different salts never share rows
    client_id:   the client's own name for the item, which is mixed in and never replaces what the item is
    Raises InvalidRecord for digests of another length and for options that have no encoding.
    """
    for name, value in (("source digest", source), ("model fingerprint", fingerprint)):
        if len(value) != DIGEST_BYTES:
            raise InvalidRecord(f"{name} has {len(value)} bytes, expected {DIGEST_BYTES}")
    # Five values of a list: as `encode_canonical` has them, which goes by what it meets and takes thrice as long.
    values = (_encode_bytes(source), _encode_map(options), _encode_bytes(fingerprint), _encode_bytes(salt))
    encoded = _item_begin(ITEM_DOMAIN) + b"".join(values)
    return _with_client_id(bytes(blake3(encoded).digest()), client_id)


def digests_with_ids(digests: Sequence[bytes], client_ids: Sequence[str | None]) -> tuple[bytes, ...]:
    """Item digests with the clients' own names mixed in; None and an empty name leave a digest as it is.

    Raises InvalidRequest where there is not one name, or None, for each item.
    """
    if len(digests) != len(client_ids):
        raise InvalidRequest(f"{len(digests)} items came with {len(client_ids)} ids, expected one each, or null")
    return tuple(_with_client_id(*pair) for pair in zip(digests, client_ids, strict=True))


def encode_canonical(value: OptionValue) -> bytes:
    """The one encoding of a value; values of different type or content never share it.

    Raises InvalidRecord for a type that has no encoding, text that is not Unicode, keys that are not text, and ints
    over 255 bytes.
    """
    if isinstance(value, bool):  # before int, which it also is
        return b"\x05" + bytes([value])
    if isinstance(value, int):
        return _encode_int(value)
    if isinstance(value, float):
        return b"\x04" + struct.pack(">d", value)
    if isinstance(value, str):
        return _encode_text(value)
    if isinstance(value, bytes):
        return _encode_bytes(value)
    if isinstance(value, Mapping):
        return _encode_map(value)
    if isinstance(value, list | tuple):
        return b"\x20" + struct.pack(">Q", len(value)) + b"".join(map(encode_canonical, value))
    if isinstance(value, ImageValue):
        sides = struct.pack(">QQ", value.width, value.height)
        return b"\x10" + _encode_text(value.mode) + sides + _with_length(value.rgba)
    if isinstance(value, ArrayValue | np.ndarray):
        return _encode_array(value if isinstance(value, ArrayValue) else array_value(value))
    raise InvalidRecord(f"no canonical encoding for a value of type {type(value).__name__}")


def _with_client_id(digest: bytes, client_id: str | None) -> bytes:
    if not client_id:
        return digest
    return bytes(blake3(encode_canonical([CLIENT_ID_DOMAIN, digest, client_id])).digest())


def _encode_text(value: str) -> bytes:
    try:
        return b"\x01" + _with_length(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"text {value[:40]!r} is not Unicode: {error.reason}") from error


def _encode_bytes(value: bytes) -> bytes:
    return b"\x02" + _with_length(value)


def _encode_array(value: ArrayValue) -> bytes:
    sides = bytes([len(value.shape)]) + struct.pack(f">{len(value.shape)}Q", *value.shape)
    return b"\x11" + _encode_text(value.dtype) + sides + _with_length(value.payload)


def _encode_int(value: int) -> bytes:
    length = (value.bit_length() + 8) // 8
    if length > _MAX_INT_BYTES:
        raise InvalidRecord(f"int of {length} bytes has no canonical encoding, expected at most {_MAX_INT_BYTES}")
    return b"\x03" + bytes([length]) + value.to_bytes(length, "big", signed=True)


def _encode_map(value: Mapping[str, OptionValue]) -> bytes:
    for key in value:
        if not isinstance(key, str):
            raise InvalidRecord(f"map key {key!r} is not text")
    entries = [encode_canonical(key) + encode_canonical(value[key]) for key in sorted(value)]
    return b"\x22" + struct.pack(">Q", len(entries)) + b"".join(entries)


def _with_length(payload: bytes) -> bytes:
    return struct.pack(">Q", len(payload)) + payload


@functools.cache
def _item_begin(domain: str) -> bytes:
    """Of a list of five values, the first of which is the domain."""
    return b"\x20" + struct.pack(">Q", 5) + _encode_text(domain)
