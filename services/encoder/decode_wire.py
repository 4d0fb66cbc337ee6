"""What the encoder and a process that decodes for it tell each other: fixed numbers over a socket, bytes in memory.

The memory is a memfd that both have mapped: the source stands at its beginning, the pixels behind it. It is sealed
before the process has it, which may be in a stranger's hands: one that could shrink it could end us with a SIGBUS.
"""

import enum
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from typing import Self

from triptych.errors import InvalidRecord
from triptych.multimodal.header import ImageFormat, MediaHeader

MAX_ANSWER_BYTES = 4096

_ORDER = struct.Struct("<QQQdd8I")
_FORMATS: tuple[ImageFormat, ...] = ("jpeg", "png", "webp", "gif", "avif")
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_MEMORY_NAME = "triptych-decode"


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one image may take."""

    cpu_seconds: float
    seconds: float  # by the clock
    memory_bytes: int  # besides source and pixels


@dataclass(frozen=True, slots=True)
class Order:
    """One image to decode, as `header` says. brings_memory: in memory of its own, whose descriptor comes along."""

    num_bytes: int
    header: MediaHeader
    allowance: Allowance
    brings_memory: bool

    @property
    def pixels_at(self) -> int:
        return pixels_at(self.num_bytes)

    @property
    def memory_bytes(self) -> int:
        return memory_bytes(self.num_bytes, self.header)

    def to_bytes(self) -> bytes:
        header, allowance = self.header, self.allowance
        return _ORDER.pack(
            self.num_bytes,
            allowance.memory_bytes,
            self.brings_memory,
            allowance.cpu_seconds,
            allowance.seconds,
            _FORMATS.index(header.format),
            *(header.width, header.height, header.raw_width, header.raw_height),
            *(header.orientation, header.frames_hint, 0),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        num_bytes, most, brings_memory, cpu_seconds, seconds, kind, *sizes, _ = _ORDER.unpack(data)
        allowance = Allowance(cpu_seconds, seconds, most)
        return cls(num_bytes, MediaHeader(_FORMATS[kind], *sizes), allowance, bool(brings_memory))


class Outcome(enum.IntEnum):
    READY = 0  # the process has started
    PIXELS = 1  # they are in the memory
    INVALID = 2  # the image is not decodable; its code and why
    OVER_MEMORY = 3  # it takes more memory than allowed; the process ends
    BROKEN = 4  # a bug of ours; what was raised


@dataclass(frozen=True, slots=True)
class Answer:
    outcome: Outcome
    code: str = ""
    text: str = ""

    def to_bytes(self) -> bytes:
        whole = bytes([self.outcome]) + self.code.encode() + b"\0" + self.text.encode(errors="replace")
        return whole[:MAX_ANSWER_BYTES]

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises InvalidRecord for what `to_bytes` would not write."""
        code, _, text = data[1:].partition(b"\0")
        try:
            return cls(Outcome(data[0]), code.decode("ascii"), text.decode(errors="replace"))
        except (ValueError, IndexError):
            raise InvalidRecord(f"a decoding process answered {data[:16]!r}") from None


def pixels_at(num_bytes: int) -> int:
    """Where pixels stand behind a source of so many bytes: where a page begins."""
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def memory_bytes(num_bytes: int, header: MediaHeader) -> int:
    """Of a source and its pixels [3, height, width]."""
    return pixels_at(num_bytes) + 3 * header.width * header.height


def new_memory(num_bytes: int) -> int:
    """A descriptor, the caller's to close, of memory whose size nobody can change."""
    fd = os.memfd_create(_MEMORY_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, num_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def mapped(fd: int) -> mmap.mmap:
    """All of the memory, shared; unmapped when nothing refers to it any more."""
    return mmap.mmap(fd, os.fstat(fd).st_size)
