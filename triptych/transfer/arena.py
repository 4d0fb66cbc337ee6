"""What a worker tells others about one of its slabs, and the one layout all slabs have. No torch.

    probe page (4096 bytes) | generation words (int64 each) | data (num_units * unit_bytes) | on CUDA, event words
    each part begins on a page; the whole is a number of pages

The probe page is how a consumer knows that what it has mapped is the arena it was told about: a pid, a descriptor
number or a device address may belong to somebody else by now, 32 random bytes do not.
"""

import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from triptych.errors import InvalidRecord

PAGE_BYTES = 4096
WORD_BYTES = 8
IPC_HANDLE_BYTES = 64  # cudaIpcMemHandle_t and cudaIpcEventHandle_t alike

_MAGIC = b"TRIPTYCH"
_NONCE_BYTES = 32
_MOST_BYTES = (1 << 63) - 1  # what a file can be, and a system call be told


@dataclass(frozen=True, slots=True)
class ShmInfo:
    """Where a slab in host memory can be opened: /proc/PID/fd/FD, by processes with the same host id."""

    host_id: str
    pid: int
    fd: int


@dataclass(frozen=True, slots=True)
class CudaIpcInfo:
    """Handles of a slab in GPU memory and of its ring of events.

    Event N has slot N modulo the ring's length. Its word in the slab says N, or more, once all before it is written.
    The event alone would not do: what a CUDA event says once its process has died is undefined. A word is never early.
    """

    memory_handle: bytes  # 64 bytes
    event_handles: tuple[bytes, ...]  # 64 bytes each
    device_uuid: str
    event_words_offset: int  # of one int64 for each slot; behind the data

    def __post_init__(self) -> None:
        for handle in (self.memory_handle, *self.event_handles):
            if len(handle) != IPC_HANDLE_BYTES:
                raise InvalidRecord(f"CUDA IPC handle has {len(handle)} bytes, expected {IPC_HANDLE_BYTES}")
        if self.event_words_offset <= 0 or self.event_words_offset % WORD_BYTES:
            raise InvalidRecord(f"event words at offset {self.event_words_offset}, expected a multiple of {WORD_BYTES}")


@dataclass(frozen=True, slots=True)
class NixlInfo:
    """The slab as the owner's NIXL agent has registered it. Descriptors are made of these numbers alone."""

    agent: str
    metadata: bytes  # NIXL's own binary form of what the agent has registered and how it is reached; no pickle
    address: int  # of the slab's first byte, in the owner's memory
    device: int  # the owner's number for its GPU; 0 in host memory
    vram: bool

    def __post_init__(self) -> None:
        if not self.agent or not self.metadata or self.address <= 0:
            raise InvalidRecord(
                f"NIXL agent {self.agent!r} with {len(self.metadata)} bytes of metadata names address {self.address:#x}"
            )


@dataclass(frozen=True, slots=True)
class ArenaInfo:
    """One exported slab. Offsets are bytes from its first; every part lies inside it, in order."""

    id: int
    kind: str  # embedding, kv, staging
    num_bytes: int
    words_offset: int
    data_offset: int
    unit_bytes: int  # data bytes that one generation word guards
    num_units: int
    probe: bytes  # the slab's first bytes
    shm: ShmInfo | None = None
    cuda_ipc: CudaIpcInfo | None = None
    rank: int = 0
    nixl: NixlInfo | None = None
    no_cuda_ipc: str = ""  # why a slab in GPU memory has no cuda_ipc

    def __post_init__(self) -> None:
        if self.unit_bytes <= 0 or self.num_units <= 0:
            raise InvalidRecord(f"arena {self.id} has {self.num_units} units of {self.unit_bytes} bytes, expected > 0")
        if not self.probe.startswith(_MAGIC) or len(self.probe) > PAGE_BYTES:
            raise InvalidRecord(
                f"arena {self.id} has no probe of at most {PAGE_BYTES} bytes that begins with {_MAGIC!r}"
            )
        if self.words_offset % WORD_BYTES or self.data_offset % WORD_BYTES:
            raise InvalidRecord(f"arena {self.id}: offsets {self.words_offset}, {self.data_offset} are not 8-aligned")
        words_end = self.words_offset + self.num_units * WORD_BYTES
        if not (len(self.probe) <= self.words_offset and words_end <= self.data_offset):
            raise InvalidRecord(f"arena {self.id}: probe, words and data overlap")
        if self.data_offset + self.data_bytes > self.num_bytes:
            raise InvalidRecord(
                f"arena {self.id} has {self.num_bytes} bytes, its data ends at {self.data_offset + self.data_bytes}"
            )
        if self.cuda_ipc is not None:
            _check_event_words(self, self.cuda_ipc)

    @property
    def data_bytes(self) -> int:
        return self.num_units * self.unit_bytes


def new_arena(kind: str, arena_id: int, unit_bytes: int, num_units: int) -> ArenaInfo:
    """The plan of a slab that is not allocated yet, with a probe page of its own; no way to open it yet."""
    if unit_bytes <= 0 or num_units <= 0:
        raise InvalidRecord(f"a slab of {num_units} units of {unit_bytes} bytes; both must be > 0")
    data_offset = PAGE_BYTES + _whole_pages(num_units * WORD_BYTES)
    num_bytes = data_offset + _whole_pages(num_units * unit_bytes)
    if num_bytes > _MOST_BYTES:
        raise InvalidRecord(f"a slab of {num_units} units of {unit_bytes} bytes; no system has so much")
    return ArenaInfo(
        id=arena_id,
        kind=kind,
        num_bytes=num_bytes,
        words_offset=PAGE_BYTES,
        data_offset=data_offset,
        unit_bytes=unit_bytes,
        num_units=num_units,
        probe=_probe_page(kind, arena_id, unit_bytes, num_units),
    )


def _check_event_words(info: ArenaInfo, ipc: CudaIpcInfo) -> None:
    begin, end = ipc.event_words_offset, ipc.event_words_offset + WORD_BYTES * len(ipc.event_handles)
    if begin < info.data_offset + info.data_bytes or end > info.num_bytes:
        raise InvalidRecord(
            f"arena {info.id}: event words at [{begin}, {end}), expected between its data and {info.num_bytes}"
        )


def check_stamp(info: ArenaInfo, units: Sequence[int], generations: Sequence[int]) -> None:
    """Raises InvalidRecord unless each unit exists, is named once, and gets a generation of at least 1.

    0 is what a fresh slab holds: a ref of generation 0 would vouch for memory that nobody has written.
    """
    if len(units) != len(generations):
        raise InvalidRecord(f"arena {info.id}: {len(units)} units stamped with {len(generations)} generations")
    if not units:
        return
    if min(units) < 0 or max(units) >= info.num_units:
        raise InvalidRecord(f"arena {info.id}: units {min(units)}..{max(units)} stamped, it has {info.num_units}")
    if min(generations) < 1:
        raise InvalidRecord(f"arena {info.id}: generation {min(generations)} stamped, expected at least 1")
    if len(set(units)) != len(units):
        raise InvalidRecord(f"arena {info.id}: a unit is stamped twice in one call")


def check_row_stamp(info: ArenaInfo, units: range, generation: int) -> None:
    """As `check_stamp`, for units in a row that get one generation."""
    if units.step != 1 or units.start < 0 or units.stop > info.num_units:
        raise InvalidRecord(f"arena {info.id}: {units} stamped, it has units 0..{info.num_units - 1}")
    if generation < 1:
        raise InvalidRecord(f"arena {info.id}: generation {generation} stamped, expected at least 1")


def probe_mismatch(info: ArenaInfo, found: bytes) -> str:
    """Why mapped memory is not the arena it should be; empty when it is."""
    if found == info.probe:
        return ""
    if not found.startswith(_MAGIC):
        return f"what is mapped is no arena (its first bytes are {found[:8]!r})"
    return f"what is mapped is another arena than {info.kind} arena {info.id} of the owner"


def _probe_page(kind: str, arena_id: int, unit_bytes: int, num_units: int) -> bytes:
    """A page of one record repeated, so that a page mapped only in part is noticed too."""
    record = _MAGIC + secrets.token_bytes(_NONCE_BYTES) + struct.pack("<QQQ", arena_id, unit_bytes, num_units)
    record += kind.encode()[:24].ljust(24, b"\0")
    return (record * (PAGE_BYTES // len(record) + 1))[:PAGE_BYTES]


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
