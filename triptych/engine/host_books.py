"""Which rows that had to leave the arena are kept in host memory, and for whom.

    evicted from the arena --admit--> listed --hold--> held (being copied back) --let_go--> listed, or gone
                                        +-- drop: in the arena again, cleared, or the least recently used --> gone

A held slot keeps its memory, so nothing decided on later can overwrite what an earlier decision is to read.
"""

import itertools
import math
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from triptych.engine.eviction import Occupied, cheapest_window
from triptych.engine.extents import Extents
from triptych.engine.store_entry import HostSlot, ItemKey
from triptych.errors import InvariantViolation


@dataclass(frozen=True, slots=True)
class Demotion:
    """Rows that have been evicted from the arena and are still in its units, until the next batch writes there."""

    span: range  # units of the arena
    slot: HostSlot  # where they go


class HostBooks:
    """Bookkeeping of the host memory behind one arena, in units of the same size. The engine's lock guards it."""

    def __init__(self, num_units: int, unit_bytes: int) -> None:
        self.unit_bytes = unit_bytes
        self.demotions = 0
        self.promotions = 0
        self.failures = 0
        self._extents = Extents(num_units)
        self._slots: dict[int, HostSlot] = {}  # start -> slot, listed or held
        self._by_key: dict[ItemKey, HostSlot] = {}
        self._cached: OrderedDict[HostSlot, None] = OrderedDict()  # listed and not held, least recently used first
        self._ticks = itertools.count(1)

    @property
    def num_bytes(self) -> int:
        return self._extents.num_units * self.unit_bytes

    @property
    def free_bytes(self) -> int:
        return self._extents.num_free_units * self.unit_bytes

    @property
    def slots(self) -> Collection[HostSlot]:
        """All of them, listed or held."""
        return self._slots.values()

    def admit(self, key: ItemKey, units: int, checksum: bytes) -> HostSlot | None:
        """A slot for rows that leave the arena; None where they are listed already, or held slots leave no room."""
        if self.find(key) is not None:
            return None
        start = self._reserve(units)
        if start is None:
            return None
        slot = HostSlot(key, start, units, checksum)
        self._slots[start] = self._by_key[key] = slot
        self._touch(slot)
        self.demotions += 1
        return slot

    def find(self, key: ItemKey) -> HostSlot | None:
        """The slot with the key's rows, or with rows that are on their way to it."""
        slot = self._by_key.get(key)
        if slot is not None and slot.dead:
            self.drop(slot)
            return None
        return slot

    def hold(self, slot: HostSlot) -> None:
        """An entry is to be made from the slot: it stays until `let_go`."""
        if not slot.listed:
            raise InvariantViolation(f"the host slot at unit {slot.start} is held, which nobody can find any more")
        slot.holds += 1
        self._cached.pop(slot, None)

    def let_go(self, slot: HostSlot) -> None:
        """The entry has been made, or never will be."""
        if slot.holds <= 0:
            raise InvariantViolation(f"the host slot at unit {slot.start} is let go, which nobody holds")
        slot.holds -= 1
        self._settle(slot)

    def promoted(self, slot: HostSlot) -> None:
        """The rows are in the arena again: the slot is let go, and its place free for others."""
        self.promotions += 1
        self.drop(slot)
        self.let_go(slot)

    def drop(self, slot: HostSlot) -> None:
        """Nobody finds the slot from now on; whoever holds it may still read it."""
        if slot.listed:
            slot.listed = False
            del self._by_key[slot.key]
            self._settle(slot)

    def settle(self, demotions: Sequence[Demotion]) -> None:
        """The batch that these went with has been worked on: forget those whose copy failed."""
        for demotion in demotions:
            if demotion.slot.dead:
                self.failures += 1
                self.drop(demotion.slot)

    def clear(self, digests: Collection[bytes] | None) -> list[HostSlot]:
        """The slots dropped: those of the digests, or all for None."""
        found = [slot for key, slot in self._by_key.items() if digests is None or key.digest in digests]
        for slot in found:
            self.drop(slot)
        return found

    def check(self) -> None:
        """Raises InvariantViolation naming the first rule that does not hold."""
        self._extents.check()
        if self._extents.taken != {start: slot.units for start, slot in self._slots.items()}:
            raise InvariantViolation("the host tier's taken ranges and its slots differ")
        for slot in self._slots.values():
            name = f"the host slot at unit {slot.start} ({slot.holds} holds)"
            if slot.holds < 0 or (slot.holds == 0 and not slot.listed):
                raise InvariantViolation(f"{name} is kept for nobody")
            if slot.listed != (self._by_key.get(slot.key) is slot):
                raise InvariantViolation(f"{name} is {'not' if slot.listed else 'still'} found by its key")
        cached = [slot for slot in self._slots.values() if slot.listed and not slot.holds]
        if list(self._cached) != sorted(cached, key=lambda slot: slot.last_used):
            raise InvariantViolation(f"{len(cached)} host slots are free to go, {len(self._cached)} are listed so")

    def _reserve(self, units: int) -> int | None:
        if units > self._extents.num_units:
            return None
        start = self._extents.reserve(units)
        if start is None:
            slots = [self._slots[start] for start in sorted(self._slots)]
            occupied = [Occupied(s.start, s.span.stop, math.inf if s.holds else s.last_used) for s in slots]
            for index in cheapest_window(occupied, self._extents.num_units, units) or ():
                self.drop(slots[index])
            start = self._extents.reserve(units)
        return start

    def _settle(self, slot: HostSlot) -> None:
        if slot.holds:
            return
        if slot.listed:
            self._touch(slot)
            return
        self._cached.pop(slot, None)
        del self._slots[slot.start]
        self._extents.release(slot.start)

    def _touch(self, slot: HostSlot) -> None:
        slot.last_used = next(self._ticks)
        self._cached[slot] = None
        self._cached.move_to_end(slot)
