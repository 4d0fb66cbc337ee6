"""An arena with a host tier behind it, and what an encoder does with both; rows are a function of their key."""

from collections.abc import Sequence

import torch
from torch import Tensor

from triptych.engine.embedding_store import EmbeddingStore
from triptych.engine.host_tier import HostTier
from triptych.engine.store_entry import Acquired, Entry, ItemKey
from triptych.errors import Overloaded
from triptych.journey import Grid
from triptych.transfer.slab import create_slab

UNIT = 64  # bytes
CPU = torch.device("cpu")
# Too short for any item of two units or more: a copy from it fails as a copy does.
TORN = create_slab("embedding", 2, UNIT, 1, CPU)


def key(name: int) -> ItemKey:
    return ItemKey(name.to_bytes(32, "big"), 4, Grid(1, 4, 4), 56, 56)


def units_of(name: int) -> int:
    return 2 + name % 7


def rows_of(wanted: ItemKey) -> Tensor:
    """What a tower would make of the item."""
    name = int.from_bytes(wanted.digest, "big")
    return torch.randint(0, 256, (units_of(name) * UNIT,), generator=torch.Generator().manual_seed(name)).byte()


class Arena:
    """A store with its memory, and what an encoder does with a batch."""

    def __init__(self, num_units: int, host_units: int) -> None:
        self.slab = create_slab("embedding", 1, UNIT, num_units, CPU)
        self.host = HostTier(host_units, UNIT, torch.zeros(host_units * UNIT, dtype=torch.uint8))
        self.store = EmbeddingStore(num_units, UNIT, self.host)
        self.made = 0  # rows that were computed, not copied

    def acquire(self, name: int) -> tuple[Entry, Acquired]:
        return self.store.acquire(key(name), units_of(name) * UNIT)

    def write(self, placed: Sequence[Entry], torn: bool = False) -> list[Entry]:
        """Save what must be saved, then write; the entries whose rows could not be had."""
        demotions = self.store.take_demotions()
        self.host.copy_out(TORN if torn else self.slab, demotions)
        failed = [entry for entry in placed if not self._written(entry)]
        self.host.settle(demotions)
        return failed

    def ready(self, name: int) -> Acquired:
        """Get the item made, found or fetched, and leave it as cache."""
        entry, acquired = self.acquire(name)
        if acquired is Acquired.NEW:
            assert self.store.place(entry)
            assert self.write([entry]) == []
            self.store.publish(entry)
        assert torch.equal(self.rows(entry), rows_of(entry.key))
        self.store.release(entry)
        self.store.check()
        return acquired

    def rows(self, entry: Entry) -> Tensor:
        return self.slab.data[entry.start * UNIT : entry.span.stop * UNIT]

    def _written(self, entry: Entry) -> bool:
        self.slab.stamp(list(entry.span), [entry.generation] * entry.units)
        if entry.host is None:
            self.made += 1
            self.rows(entry).copy_(rows_of(entry.key))
            return True
        try:
            self.host.copy_in(self.slab, entry.span, entry.host)
        except Overloaded:
            return False
        return True
