"""Which encoded items are in the arena, which are on their way, and who needs them to stay.

    absent --acquire--> reserved --place--> writing --publish--> ready --evicted--> absent
                           |                   |
                           +-- nobody wants it, or abandon --> absent

An entry is wanted while it has claims: one for every request that waits for the rows or may still read them. The first
to acquire an absent key is its producer, everyone after joins. Ready entries without claims are the cache; they go,
least recently used first, only when room is needed. Bookkeeping alone: no bytes are touched here.
"""

import itertools
import math
from collections import OrderedDict

from triptych.engine.eviction import Occupied, cheapest_window
from triptych.engine.extents import Extents
from triptych.engine.store_entry import Acquired, Entry, ItemKey, State
from triptych.errors import InvariantViolation, MediaTooLarge


class EmbeddingStore:
    """Bookkeeping of one embedding arena. Not thread-safe: the engine's lock guards it."""

    def __init__(self, num_units: int, unit_bytes: int) -> None:
        self.extents = Extents(num_units)
        self.unit_bytes = unit_bytes
        self.num_claims = 0
        self.hits = 0
        self.joins = 0
        self.evictions = 0
        self._by_key: dict[ItemKey, Entry] = {}
        self._placed: dict[int, Entry] = {}  # start -> entry
        self._cached: OrderedDict[Entry, None] = OrderedDict()  # ready and unclaimed, least recently used first
        self._generations = itertools.count(1)  # 0 stands for units never written
        self._ticks = itertools.count(1)

    @property
    def num_ready(self) -> int:
        return sum(entry.state is State.READY for entry in self._placed.values())

    @property
    def free_bytes(self) -> int:
        """Bytes neither claimed, cached nor being written."""
        return self.extents.num_free_units * self.unit_bytes

    def units_for(self, num_bytes: int) -> int:
        return -(-num_bytes // self.unit_bytes)

    def has_ready(self, key: ItemKey) -> bool:
        entry = self._by_key.get(key)
        return entry is not None and entry.state is State.READY

    def acquire(self, key: ItemKey, num_bytes: int) -> tuple[Entry, Acquired]:
        """The key's entry with one more claim. Raises MediaTooLarge when the rows can never fit the arena."""
        units = self.units_for(num_bytes)
        if units > self.extents.num_units:
            whole = self.extents.num_units * self.unit_bytes
            raise MediaTooLarge(
                f"the image's {num_bytes} bytes of embedding rows do not fit the arena of {whole} bytes"
            )
        entry = self._by_key.get(key)
        if entry is None:
            entry, acquired = Entry(key, units), Acquired.NEW
            self._by_key[key] = entry
        elif entry.state is State.READY:
            acquired = Acquired.HIT
            self.hits += 1
        else:
            acquired = Acquired.JOINED
            self.joins += 1
        entry.claims += 1
        self.num_claims += 1
        self._cached.pop(entry, None)
        return entry, acquired

    def place(self, entry: Entry) -> bool:
        """Give a reserved entry its units and generation, evicting if need be; False when claims leave no room now."""
        self._require(entry, State.RESERVED, "placed")
        start = self.extents.reserve(entry.units)
        if start is None:
            if not self._evict_for(entry.units):
                return False
            start = self.extents.reserve(entry.units)
        if start is None:
            raise InvariantViolation(f"eviction promised {entry.units} units in a row and did not free them")
        entry.start, entry.state = start, State.WRITING
        entry.generation = next(self._generations)
        self._placed[start] = entry
        return True

    def publish(self, entry: Entry, event: int = 0, checksum: bytes = b"") -> None:
        """The rows are written, or will be before `event`: the entry may be found, read and, unclaimed, evicted."""
        self._require(entry, State.WRITING, "published")
        entry.state, entry.event, entry.checksum = State.READY, event, checksum
        self._settle(entry)

    def abandon(self, entry: Entry) -> None:
        """The rows will not be made: units come back, all claims are void, the next to acquire the key starts anew."""
        if entry.state not in (State.RESERVED, State.WRITING):
            raise InvariantViolation(f"an entry that is {entry.state.value} cannot be abandoned")
        self.num_claims -= entry.claims
        entry.claims = 0
        self._forget(entry)

    def release(self, entry: Entry) -> None:
        """One claim less. A reserved entry that nobody claims is gone; a written one stays as cache."""
        if entry.claims <= 0 or entry.state is State.GONE:
            raise InvariantViolation(
                f"a claim was released on an entry that is {entry.state.value} with {entry.claims}"
            )
        entry.claims -= 1
        self.num_claims -= 1
        self._settle(entry)

    def make_way(self, units: int) -> None:
        """Take out of circulation the claimed entries that stand where `units` in a row come free soonest.

        Without this, popular entries that are claimed anew all the time could keep a large item out for ever. Retired
        entries can be found no more, so their claims run out; a second call picks the same place.
        """
        entries = self._by_start()
        window = cheapest_window([self._occupied(e, _drain_cost(e)) for e in entries], self.extents.num_units, units)
        for index in window or ():
            entry = entries[index]
            if (entry.claims or entry.state is State.WRITING) and not entry.retired:
                entry.retired = True
                del self._by_key[entry.key]

    def idle(self) -> bool:
        """Whether nobody claims, awaits or writes anything; cached rows are fine."""
        return self.num_claims == 0 and all(entry.state is State.READY for entry in self._by_key.values())

    def check(self) -> None:
        """Raises InvariantViolation naming the first rule that does not hold."""
        self.extents.check()
        if self.extents.taken != {start: entry.units for start, entry in self._placed.items()}:
            raise InvariantViolation("the arena's taken ranges and the placed entries differ")
        entries = {id(entry): entry for entry in (*self._by_key.values(), *self._placed.values())}
        for entry in entries.values():
            self._check_entry(entry)
        claims = sum(entry.claims for entry in entries.values())
        if claims != self.num_claims:
            raise InvariantViolation(f"{self.num_claims} claims counted, entries hold {claims}")
        cached = [entry for entry in self._by_start() if entry.state is State.READY and not entry.claims]
        if list(self._cached) != sorted(cached, key=lambda entry: entry.last_used):
            raise InvariantViolation(
                f"{len(cached)} entries are ready and unclaimed, {len(self._cached)} are listed so"
            )
        generations = [entry.generation for entry in self._placed.values()]
        if len(set(generations)) != len(generations):
            raise InvariantViolation("two placed entries share a generation")

    def _check_entry(self, entry: Entry) -> None:
        name = f"entry {entry.key.digest.hex()[:8]} ({entry.state.value}, {entry.claims} claims)"
        placed = entry.state in (State.WRITING, State.READY)
        if placed != (self._placed.get(entry.start) is entry):
            raise InvariantViolation(f"{name} is {'not ' if placed else ''}placed at unit {entry.start}")
        if entry.retired == (self._by_key.get(entry.key) is entry):
            raise InvariantViolation(f"{name} is {'retired and still' if entry.retired else 'not'} found by its key")
        if entry.claims < 0 or (entry.claims == 0 and entry.state is State.RESERVED):
            raise InvariantViolation(f"{name} is wanted by nobody")
        if entry.retired and entry.claims == 0 and entry.state is State.READY:
            raise InvariantViolation(f"{name} is retired, unclaimed and still there")

    def _evict_for(self, units: int) -> bool:
        oldest = next(iter(self._cached), None)
        # What the search below would find too, without the search: the usual case where items are of one size.
        if oldest is not None and self.extents.room_without(oldest.start) >= units:
            self._evict(oldest)
            return True
        entries = self._by_start()
        window = cheapest_window([self._occupied(e, _eviction_cost(e)) for e in entries], self.extents.num_units, units)
        if window is None:
            return False
        for index in window:
            self._evict(entries[index])
        return True

    def _evict(self, entry: Entry) -> None:
        self.evictions += 1
        self._forget(entry)

    def _settle(self, entry: Entry) -> None:
        """After a change: what nobody claims is forgotten or becomes cache."""
        if entry.claims or entry.state is State.WRITING:
            return
        if entry.state is State.READY and not entry.retired:
            entry.last_used = next(self._ticks)
            self._cached[entry] = None
        else:
            self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        if not entry.retired:
            del self._by_key[entry.key]
        if entry.state is not State.RESERVED:
            del self._placed[entry.start]
            self.extents.release(entry.start)
        self._cached.pop(entry, None)
        entry.state = State.GONE

    def _by_start(self) -> list[Entry]:
        return [self._placed[start] for start in sorted(self._placed)]

    @staticmethod
    def _occupied(entry: Entry, cost: float) -> Occupied:
        return Occupied(entry.start, entry.start + entry.units, cost)

    @staticmethod
    def _require(entry: Entry, state: State, move: str) -> None:
        if entry.state is not state:
            raise InvariantViolation(f"an entry that is {entry.state.value} cannot be {move}; it must be {state.value}")


def _eviction_cost(entry: Entry) -> float:
    return math.inf if entry.claims or entry.state is State.WRITING else entry.last_used


def _drain_cost(entry: Entry) -> float:
    """Cheapest: what can be evicted at once; then what already drains; dearest: what would be lost to the cache."""
    if not entry.claims and entry.state is State.READY:
        return 0.0
    return 1.0 if entry.retired else 2.0
