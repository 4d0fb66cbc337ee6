"""Images that clients have named, in memory that all routers of a server share: what one has heard, all know.

The images lie in a ring, and so do the entries that tell of them. Each is put at its head, over whatever is oldest; one
that is asked for while it lies in the older half is put at the head again, so those that are used stay. An entry whose
image lies further behind the head than the ring is long is gone, without anybody having to say so. A process that is
killed while it writes leaves a gap that nobody was told of. What is read is held against its digest: nothing that
another has overwritten meanwhile is served.
"""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from triptych.multimodal.digest import source_digest
from triptych.multimodal.header import ImageFormat, MediaHeader
from triptych.router.common_memory import CommonMemory
from triptych.router.media.names import ENTRY_BYTES, Named, Namespace, named_otherwise, unknown_name

_HEAD = struct.Struct("QQ")  # bytes that were put into the ring, entries that were made; ever
_ENTRY = struct.Struct("QQ32sBBIIIII")
_NAME_BYTES = 16
_MOST_ENTRIES = 1 << 15
_FORMATS: tuple[ImageFormat, ...] = get_args(ImageFormat)


@dataclass(frozen=True, slots=True)
class _Entry:
    begin: int  # in all bytes that were ever put into the ring
    size: int
    digest: bytes
    header: MediaHeader


class CommonNames:
    """A `Names`. Not for several threads."""

    def __init__(
        self, limit_bytes: int, descriptor: int = -1, changed: Callable[[int], None] = lambda held: None
    ) -> None:
        """descriptor: of memory of `num_bytes`; changed: told how many bytes all images have"""
        self.limit_bytes = limit_bytes
        self._changed = changed
        self._common = CommonMemory(self.num_bytes(limit_bytes), descriptor)
        self._memory = self._common.bytes
        self._num_entries = _num_entries(limit_bytes)
        self._names_at = _HEAD.size
        self._entries_at = self._names_at + self._num_entries * _NAME_BYTES
        self._ring_at = self._entries_at + self._num_entries * _ENTRY.size

    @staticmethod
    def num_bytes(limit_bytes: int) -> int:
        return _HEAD.size + _num_entries(limit_bytes) * (_NAME_BYTES + _ENTRY.size) + limit_bytes

    def find(self, space: Namespace, uuid: str) -> Named:
        """Raises InvalidMedia for a name that was never heard, or is forgotten by now: both read the same."""
        name = _name(space, uuid)
        with self._common:
            entry = self._entry(name)
            is_old = entry is not None and self._is_old(name, entry)
        data = self._read(entry) if entry is not None else b""
        if entry is None or source_digest(data) != entry.digest:
            raise unknown_name(uuid)
        named = Named(data, entry.digest, entry.header)
        if is_old:
            self._put(name, uuid, named)
        return named

    def learn(self, space: Namespace, uuid: str, named: Named) -> None:
        """Raises InvalidMedia where the name is known to stand for another image."""
        name = _name(space, uuid)
        with self._common:
            entry = self._entry(name)
            is_old = entry is None or self._is_old(name, entry)
        if entry is not None and entry.digest != named.digest:
            raise named_otherwise(uuid)
        if is_old and len(named.data) + ENTRY_BYTES <= self.limit_bytes:
            self._put(name, uuid, named)

    def _put(self, name: bytes, uuid: str, named: Named) -> None:
        size = len(named.data)
        with self._common:
            begin, made = _HEAD.unpack_from(self._memory)
            _HEAD.pack_into(self._memory, 0, begin + size, made)
        self._write(begin, named.data)
        entry = _Entry(begin, size, named.digest, named.header)
        with self._common:
            known = self._entry(name)  # by another process, meanwhile
            if known is not None and known.digest != named.digest:
                raise named_otherwise(uuid)
            if self._age(entry) <= self.limit_bytes:
                self._tell(name, entry)
            held = min(self.limit_bytes, self._head())
        self._changed(held)

    # With the memory entered.

    def _head(self) -> int:
        head: int = _HEAD.unpack_from(self._memory)[0]
        return head

    def _age(self, entry: _Entry) -> int:
        """Bytes from its beginning to the head."""
        return self._head() - entry.begin

    def _is_old(self, name: bytes, entry: _Entry) -> bool:
        made = _HEAD.unpack_from(self._memory)[1]
        later = (made - 1 - self._place(name)) % self._num_entries
        return self._age(entry) > self.limit_bytes // 2 or later > self._num_entries // 2

    def _place(self, name: bytes) -> int:
        """−1 where it has none."""
        made = min(self._num_entries, _HEAD.unpack_from(self._memory)[1])
        end = self._names_at + made * _NAME_BYTES
        at = self._memory.find(name, self._names_at, end)
        while at >= 0 and (at - self._names_at) % _NAME_BYTES:  # across two names
            at = self._memory.find(name, at + 1, end)
        return (at - self._names_at) // _NAME_BYTES if at >= 0 else -1

    def _entry(self, name: bytes) -> _Entry | None:
        """None where it is gone."""
        place = self._place(name)
        if place < 0:
            return None
        begin, size, digest, kind, orientation, *sides = _ENTRY.unpack_from(
            self._memory, self._entries_at + place * _ENTRY.size
        )
        width, height, raw_width, raw_height, frames = sides
        header = MediaHeader(_FORMATS[kind], width, height, raw_width, raw_height, orientation, frames)
        entry = _Entry(begin, size, digest, header)
        return entry if self._age(entry) <= self.limit_bytes else None

    def _tell(self, name: bytes, entry: _Entry) -> None:
        """The entry of this name from now on, in the place of the one made longest ago."""
        head, made = _HEAD.unpack_from(self._memory)
        place, before = made % self._num_entries, self._place(name)
        for each in (place, before) if before >= 0 else (place,):
            at = self._names_at + each * _NAME_BYTES
            self._memory[at : at + _NAME_BYTES] = bytes(_NAME_BYTES)  # nobody's, so no name has half an entry
        _HEAD.pack_into(self._memory, 0, head, made + 1)
        header = entry.header
        _ENTRY.pack_into(
            self._memory,
            self._entries_at + place * _ENTRY.size,
            *(entry.begin, entry.size, entry.digest, _FORMATS.index(header.format), header.orientation),
            *(header.width, header.height, header.raw_width, header.raw_height, header.frames_hint),
        )
        at = self._names_at + place * _NAME_BYTES
        self._memory[at : at + _NAME_BYTES] = name

    # Without; an image may take a millisecond.

    def _pieces(self, begin: int, size: int) -> list[tuple[int, int]]:
        """Where so many bytes of the ring lie in memory: in one piece, or around its end."""
        at = begin % self.limit_bytes
        first = min(size, self.limit_bytes - at)
        return [(self._ring_at + at, first), (self._ring_at, size - first)]

    def _read(self, entry: _Entry) -> bytes:
        return b"".join([self._memory[at : at + size] for at, size in self._pieces(entry.begin, entry.size)])

    def _write(self, begin: int, data: bytes) -> None:
        done = 0
        for at, size in self._pieces(begin, len(data)):
            self._memory[at : at + size] = data[done : done + size]
            done += size


def _num_entries(limit_bytes: int) -> int:
    return max(1, min(_MOST_ENTRIES, limit_bytes // ENTRY_BYTES))


def _name(space: Namespace, uuid: str) -> bytes:
    told = b"".join(len(text.encode()).to_bytes(8, "little") + text.encode() for text in (*space, uuid))
    return hashlib.blake2b(told, digest_size=_NAME_BYTES).digest()
