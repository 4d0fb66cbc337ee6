"""What the embedding store keeps of one item: its key, its state, and where its rows are."""

import enum
from dataclasses import dataclass

from triptych.journey import Grid, Item, Modality


@dataclass(frozen=True, slots=True)
class ItemKey:
    """What rows are found by: the item's digest, and every claim about it that was verified when they were made.

    A request that names the digest with another size or row count finds nothing: its own claims are put to the test.
    """

    digest: bytes
    rows: int
    grid: Grid
    width: int
    height: int
    modality: Modality = Modality.IMAGE

    @classmethod
    def of(cls, item: Item) -> "ItemKey":
        return cls(item.digest, item.rows, item.grid, item.width, item.height, item.modality)


class State(enum.Enum):
    RESERVED = "reserved"  # someone is to produce it; no units yet
    WRITING = "writing"  # has its units and generation; bytes may be incomplete
    READY = "ready"
    GONE = "gone"


class Acquired(enum.Enum):
    NEW = "new"  # the caller produces it
    JOINED = "joined"  # someone else does
    HIT = "hit"  # the rows are there


@dataclass(slots=True, eq=False)
class HostSlot:
    """Host memory with one item's rows, while the item is in no device's arena. Only the host tier writes it."""

    key: ItemKey
    start: int  # first unit of the host tier's memory
    units: int
    checksum: bytes = b""
    holds: int = 0  # entries that are to be copied from it: its memory is not given to others meanwhile
    listed: bool = True  # found by its key
    last_used: int = 0  # in the tier's own ticks
    dead: bool = False  # the copy to it failed: it must not be read

    @property
    def span(self) -> range:
        return range(self.start, self.start + self.units)

    @property
    def rows(self) -> int:
        return self.key.rows


@dataclass(slots=True, eq=False)
class Entry:
    """One item's rows, from the first request for them until they are evicted. Only the store writes it."""

    key: ItemKey
    units: int
    state: State = State.RESERVED
    claims: int = 0
    start: int = -1  # first unit, once placed
    generation: int = 0  # unique per placement; stamped on every unit before the first byte is written
    last_used: int = 0  # when its last claim ended, in the store's own ticks
    retired: bool = False  # found by no one any more, freed with its last claim
    cleared: bool = False  # and for good: its rows are not kept anywhere
    pinned: bool = False  # one of its claims is the operators'
    event: int = 0  # slot in the slab's event ring
    checksum: bytes = b""
    host: HostSlot | None = None  # where the rows are copied from, instead of being made anew

    @property
    def span(self) -> range:
        return range(self.start, self.start + self.units)
