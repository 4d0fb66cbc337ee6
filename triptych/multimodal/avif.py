"""Boxes of an AVIF: size and orientation of its picture, without decoding any of it.

The picture is the primary item of a file of stills. Its size is told by the property `ispe`; rotation and mirroring are
properties as well, and EXIF says nothing beside them. Sequences are refused: their pictures lie in tracks.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from triptych.multimodal.header import MAX_PIECES, MediaHeader, corrupt, oriented_header, truncated, unsupported

_BRANDS_BYTES = 1 << 10
_LARGE = 1  # of a box's size: the size follows in 64 bits
_TO_THE_END = 0
_NO_MIRROR = -1
# By quarters of a turn to the left, and the mirror behind them: none, top with bottom, left with right.
_ORIENTATIONS: Mapping[int, tuple[int, int, int]] = {0: (1, 4, 2), 1: (8, 5, 7), 2: (3, 2, 4), 3: (6, 7, 5)}


class _Box(NamedTuple):
    kind: bytes
    begin: int  # of what is in it
    end: int


def is_avif(data: bytes) -> bool:
    """Whether it says so; a file of the family that says something else first may still be one."""
    return data[4:8] == b"ftyp" and bool({b"avif", b"avis"} & set(_brands(data)))


def read_header(data: bytes) -> MediaHeader:
    """Raises InvalidMedia when boxes are missing, cut or contradict the format."""
    if data[8:12] == b"avis":
        raise unsupported("avif", "several frames")
    meta = _only(data, 0, len(data), b"meta")
    found = {box.kind: box for box in _boxes(data, meta.begin + 4, meta.end)}  # behind version and flags
    for kind in (b"pitm", b"iprp"):
        if kind not in found:
            raise corrupt("avif", f"it has no {kind.decode()!r} box")
    primary = _primary(data, found[b"pitm"])
    properties = _properties(data, found[b"iprp"], primary)
    if b"ispe" not in properties:
        raise corrupt("avif", "its picture has no size")
    if b"clap" in properties:
        raise unsupported("avif", "a cut-out")
    size, turn, mirror = properties[b"ispe"], properties.get(b"irot"), properties.get(b"imir")
    quarters = _bytes(data, turn, 0, 1)[0] & 3 if turn else 0
    axis = _bytes(data, mirror, 0, 1)[0] & 1 if mirror else _NO_MIRROR
    width, height = (int.from_bytes(_bytes(data, size, at, 4), "big") for at in (4, 8))
    return oriented_header("avif", width, height, _ORIENTATIONS[quarters][axis - _NO_MIRROR])


def _brands(data: bytes) -> list[bytes]:
    """What the file says that it is; the version between them is none."""
    end = min(int.from_bytes(data[:4], "big"), len(data), _BRANDS_BYTES)
    return [data[8:12], *(data[at : at + 4] for at in range(16, end - 3, 4))]


def _primary(data: bytes, box: _Box) -> int:
    num_bytes = 4 if _bytes(data, box, 0, 1)[0] else 2
    return int.from_bytes(_bytes(data, box, 4, num_bytes), "big")


def _properties(data: bytes, iprp: _Box, item: int) -> Mapping[bytes, _Box]:
    """Of an item, the first of each kind."""
    container = _only(data, iprp.begin, iprp.end, b"ipco")
    every = list(_boxes(data, container.begin, container.end))
    found: dict[bytes, _Box] = {}
    for box in _boxes(data, iprp.begin, iprp.end):
        if box.kind == b"ipma":
            for index in _associated(data, box, item):
                if index > len(every):
                    raise corrupt("avif", f"its picture has property {index} of {len(every)}")
                if index:  # 0: none
                    found.setdefault(every[index - 1].kind, every[index - 1])
    return found


def _associated(data: bytes, box: _Box, wanted: int) -> Iterator[int]:
    """Numbers of an item's properties, from 1."""
    head = _bytes(data, box, 0, 8)
    id_bytes, is_wide = (4 if head[0] else 2), bool(head[3] & 1)
    count, at = int.from_bytes(head[4:8], "big"), 8
    if count > MAX_PIECES:
        raise corrupt("avif", f"it has properties of {count} items")
    for _ in range(count):
        item = int.from_bytes(_bytes(data, box, at, id_bytes), "big")
        num = _bytes(data, box, at + id_bytes, 1)[0]
        at += id_bytes + 1
        width = 2 if is_wide else 1
        if item == wanted:
            told = _bytes(data, box, at, num * width)
            mask = (1 << (8 * width - 1)) - 1  # the highest bit says that the property must be understood
            yield from (int.from_bytes(told[i : i + width], "big") & mask for i in range(0, num * width, width))
        at += num * width


def _only(data: bytes, begin: int, end: int, kind: bytes) -> _Box:
    found = next((box for box in _boxes(data, begin, end) if box.kind == kind), None)
    if found is None:
        raise corrupt("avif", f"it has no {kind.decode()!r} box")
    return found


def _boxes(data: bytes, begin: int, end: int) -> Iterator[_Box]:
    """All that lie side by side between two places."""
    for _ in range(MAX_PIECES):
        if begin >= end:
            return
        if begin + 8 > end:
            raise truncated("avif", "the head of a box")
        size, kind, head = int.from_bytes(data[begin : begin + 4], "big"), data[begin + 4 : begin + 8], 8
        if size == _LARGE:
            size, head = int.from_bytes(data[begin + 8 : begin + 16], "big"), 16
        elif size == _TO_THE_END:
            size = end - begin
        if size < head:
            raise corrupt("avif", f"a box has {size} bytes")
        if begin + size > end:
            raise truncated("avif", f"box {kind!r}")
        yield _Box(kind, begin + head, begin + size)
        begin += size
    raise corrupt("avif", f"it has more than {MAX_PIECES} boxes")


def _bytes(data: bytes, box: _Box, at: int, count: int) -> bytes:
    """Some of a box. Raises InvalidMedia where it is shorter."""
    if box.begin + at + count > box.end:
        raise corrupt("avif", f"its box {box.kind.decode('latin-1')!r} is too short")
    return data[box.begin + at : box.begin + at + count]
