"""What requests are about, and what every byte of it should be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

from blake3 import blake3

from tests.transfer.model.memory import UNIT_BYTES
from triptych.journey import ClaimId, Endpoint
from triptych.transfer.checksum import CHECKSUM_BYTES

LEASE_SECONDS = 2.0
SWEEP_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Picture:
    """An item: its rows fill some units."""

    name: bytes
    units: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """Pictures, and the KV that comes of them: chunk i may be computed once picture i has landed."""

    name: bytes
    pictures: tuple[Picture, ...]
    blocks_by_chunk: tuple[int, ...]

    @property
    def num_blocks(self) -> int:
        return sum(self.blocks_by_chunk)


class Event:
    """Of an owner's device: happens once, when everything launched before it has been done."""

    def __init__(self) -> None:
        self.done = False
        self._waiting: list[Callable[[], None]] = []

    def happen(self) -> None:
        self.done = True
        for wake in self._waiting:
            wake()

    def when_done(self, wake: Callable[[], None]) -> None:
        if self.done:
            wake()
        else:
            self._waiting.append(wake)


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """Claim on units of an owner's slab. As on the wire, but for the event, which stands for its handle."""

    claim: ClaimId
    owner: Endpoint
    units: tuple[int, ...]
    generations: tuple[int, ...]
    event: Event
    checksum: bytes = b""
    begin: int = 0  # KV: the first block of the prompt that it covers
    lease_seconds: float = field(default=LEASE_SECONDS)


@lru_cache(maxsize=4096)
def content(name: bytes, place: int) -> bytes:
    """The bytes of one unit: of a picture's rows, or of a block of a prompt's KV."""
    return blake2b(name + place.to_bytes(4, "big"), digest_size=UNIT_BYTES).digest()


def contents(name: bytes, places: Sequence[int]) -> bytes:
    return b"".join(content(name, place) for place in places)


def checksum_of(data: bytes) -> bytes:
    """As the function of the product, which takes tensors."""
    return blake3(data).digest(CHECKSUM_BYTES)
