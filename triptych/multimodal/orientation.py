"""Orientation of an image from its EXIF and XMP: one rule for every container.

1. EXIF, where it is TIFF and its first directory has the Orientation tag: that tag decides, whatever it says.
2. Otherwise XMP: the first `tiff:Orientation`, as attribute or as element.
3. Otherwise, and for values outside 1 to 8: upright.

Where a file is sound this is what Pillow's `exif_transpose` does; where Pillow stops with an error or depends on what
was asked before (EXIF that is not TIFF), EXIF counts as absent.
"""

import math
import re
import struct

_UPRIGHT = 1
_ORIENTATION_TAG = 274
_ENTRY_BYTES = 12
_MAX_ENTRIES = 4096  # of one directory; cameras write a few dozen

_EXIF_PREFIX = re.compile(rb"(?:Exif\x00\x00){0,2}")
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')

_BYTE_ORDERS = {
    b"II\x2a\x00": "<",
    b"MM\x00\x2a": ">",
    b"II\x00\x2a": "<",  # the magic number in the wrong byte order, as some writers leave it
    b"MM\x2a\x00": ">",
}

# TIFF field type -> bytes per value, and how to read one (nothing where values are not numbers)
_FIELD_TYPES: dict[int, tuple[int, str]] = {
    1: (1, ""),
    2: (1, ""),
    3: (2, "H"),
    4: (4, "L"),
    5: (8, "LL"),
    6: (1, "b"),
    7: (1, ""),
    8: (2, "h"),
    9: (4, "l"),
    10: (8, "ll"),
    11: (4, "f"),
    12: (8, "d"),
    13: (4, "L"),
    16: (8, "Q"),
}


def orientation_of(exif: bytes, xmp: bytes) -> int:
    """Orientation 1 to 8 by the rule above.

    exif: TIFF, with or without its `Exif\\0\\0` prefix; empty where the file has none
    xmp:  the packet as UTF-8; empty where the file has none
    """
    value = _exif_orientation(exif)
    if value is None:
        found = _XMP_ORIENTATION.search(xmp)
        value = int(found[1]) if found else _UPRIGHT
    return int(value) if value in range(1, 9) else _UPRIGHT


def _exif_orientation(exif: bytes) -> float | None:
    """What the tag says; 0 when it holds no number, None when there is no such tag."""
    prefix = _EXIF_PREFIX.match(exif)
    tiff = exif[prefix.end() :] if prefix else exif
    order = _BYTE_ORDERS.get(tiff[:4])
    if order is None or len(tiff) < 8:
        return None
    (directory,) = struct.unpack_from(order + "L", tiff, 4)
    if directory + 2 > len(tiff):
        return None
    (count,) = struct.unpack_from(order + "H", tiff, directory)
    return _find_tag(tiff, order, directory + 2, min(count, _MAX_ENTRIES))


def _find_tag(tiff: bytes, order: str, begin: int, count: int) -> float | None:
    """The tag's value among the entries of a directory.

    As in Pillow, an entry that claims more than there is is skipped, and one that points behind the end ends the
    search: what follows such a pointer is garbage more often than not.
    """
    whole = min(count, (len(tiff) - begin) // _ENTRY_BYTES)
    entries = struct.iter_unpack(order + "HHL4s", tiff[begin : begin + whole * _ENTRY_BYTES])
    seen: set[int] = set()
    claimed = 0
    for tag, kind, number, value in entries:
        unit, code = _FIELD_TYPES.get(kind, (0, ""))
        size = unit * number
        if tag in seen or size == 0:
            continue
        if size > len(value):
            claimed += size
            if claimed > len(tiff):
                continue
            (offset,) = struct.unpack(order + "L", value)
            if offset + size > len(tiff):
                return None
            value = tiff[offset : offset + unit]
        if tag == _ORIENTATION_TAG:
            return _number(order + code, value) if code else 0
        seen.add(tag)
    return None


def _number(code: str, value: bytes) -> float:
    """The first value of a field; a fraction where it has two parts."""
    parts = struct.unpack_from(code, value)
    if len(parts) == 1:
        return float(parts[0])
    return parts[0] / parts[1] if parts[1] else math.nan
