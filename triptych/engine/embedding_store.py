"""Which encoded items are in the arena, which are on their way, and who needs them to stay.

    absent --acquire--> reserved --place--> writing --publish--> ready --evicted--> absent
                           |                   |
                           +-- nobody wants it, or abandon --> absent

An entry is wanted while it has claims: one for every request that waits for the rows or may still read them, one more
while operators have pinned it. The first to acquire an absent key is its producer, everyone after joins. Ready entries
without claims are the cache; they go, least recently used first, only when room is needed, and where there is a host
tier their rows go there: the next batch copies them before it writes. Bookkeeping alone: no bytes are touched here.
"""

import itertools
import math
from collections import OrderedDict
from collections.abc import Collection

from triptych.engine.eviction import Occupied, cheapest_window
from triptych.engine.extents import Extents
from triptych.engine.host_books import Demotion, HostBooks
from triptych.engine.store_books import Books, check_entries, check_slots
from triptych.engine.store_entry import Acquired, Entry, ItemKey, State
from triptych.errors import InvariantViolation, MediaTooLarge


class EmbeddingStore:
    """Bookkeeping of one embedding arena. Not thread-safe: the engine's lock guards it."""

    def __init__(
        self, num_units: int, unit_bytes: int, host: HostBooks | None = None, pins_leave_bytes: int = 0
    ) -> None:
        """host: where evicted rows go, if anywhere; pins_leave_bytes: how much must stay, in one piece, without pins"""
        self.extents = Extents(num_units)
        self.unit_bytes = unit_bytes
        self.host = host
        self.pins_leave_bytes = pins_leave_bytes
        self.num_claims = 0
        self.pinned: set[Entry] = set()  # each has a claim that is the operators'
        self.hits = 0
        self.joins = 0
        self.evictions = 0
        self.oversize = 0
        self.replacements = 0
        self._demotions: list[Demotion] = []  # decided on, and not yet handed out
        self._retired: set[Entry] = set()
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

    @property
    def pinned_bytes(self) -> int:
        return sum(entry.units for entry in self.pinned) * self.unit_bytes

    def units_for(self, num_bytes: int) -> int:
        return -(-num_bytes // self.unit_bytes)

    def has_ready(self, key: ItemKey) -> bool:
        entry = self._by_key.get(key)
        return entry is not None and entry.state is State.READY

    def acquire(self, key: ItemKey, num_bytes: int) -> tuple[Entry, Acquired]:
        """The key's entry with one more claim; a new one is made from its host slot where it has one.

        Raises MediaTooLarge when the rows can never fit the arena.
        """
        units = self.units_for(num_bytes)
        if units > self.extents.num_units:
            self.oversize += 1
            whole = self.extents.num_units * self.unit_bytes
            raise MediaTooLarge(
                f"the image's {num_bytes} bytes of embedding rows do not fit the arena of {whole} bytes"
            )
        entry = self._by_key.get(key)
        if entry is None:
            entry, acquired = self._new_entry(key, units), Acquired.NEW
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

    def take_demotions(self) -> tuple[Demotion, ...]:
        """What must be copied to the host before anything is written that has been placed since the last call."""
        demotions, self._demotions = self._demotions, []
        return tuple(each for each in demotions if each.slot.listed or each.slot.holds)

    def publish(self, entry: Entry, event: int = 0, checksum: bytes = b"") -> None:
        """The rows are written, or will be before `event`: the entry may be found, read and, unclaimed, evicted."""
        self._require(entry, State.WRITING, "published")
        entry.state, entry.event, entry.checksum = State.READY, event, checksum
        if self.host is not None and entry.host is not None:
            self.host.promoted(entry.host)
            entry.host = None
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
                self._retire(entry)

    # For operators

    def found(self, digests: Collection[bytes] | None) -> list[Entry]:
        """The entries that can be found by their keys: those of the digests, or all for None."""
        return [entry for key, entry in self._by_key.items() if digests is None or key.digest in digests]

    def pin(self, entry: Entry) -> bool:
        """Keep a ready entry until it is unpinned or cleared; False when too little would be left for others."""
        self._require(entry, State.READY, "pinned")
        if entry.pinned:
            return True
        occupied = [self._occupied(e, math.inf if e.pinned or e is entry else 0.0) for e in self._by_start()]
        if cheapest_window(occupied, self.extents.num_units, self.units_for(self.pins_leave_bytes)) is None:
            return False
        entry.pinned = True
        entry.claims += 1
        self.num_claims += 1
        self.pinned.add(entry)
        self._cached.pop(entry, None)
        return True

    def unpin(self, entry: Entry) -> None:
        if entry.pinned:
            entry.pinned = False
            self.pinned.remove(entry)
            self.release(entry)

    def clear(self, entry: Entry) -> None:
        """Nobody finds the entry from now on; it is freed with its last claim, now if there is none."""
        self.unpin(entry)
        entry.cleared = True
        if entry.state is State.READY and not entry.claims:
            self._forget(entry)
        elif not entry.retired:
            self._retire(entry)

    def idle(self) -> bool:
        """Whether nobody claims, awaits or writes anything; cached and pinned rows are fine."""
        return self.num_claims == len(self.pinned) and all(
            entry.state is State.READY for entry in self._by_key.values()
        )

    def check(self) -> None:
        """Raises InvariantViolation naming the first rule that does not hold."""
        entries = {*self._by_key.values(), *self._placed.values(), *self._retired}
        books = Books(self._by_key, self._placed, tuple(self._cached), self._retired, entries)
        check_entries(books, self.extents)
        claims = sum(entry.claims for entry in entries)
        if claims != self.num_claims:
            raise InvariantViolation(f"{self.num_claims} claims counted, entries hold {claims}")
        if self.pinned != {entry for entry in entries if entry.pinned}:
            raise InvariantViolation(f"{len(self.pinned)} entries are listed as pinned, others are")
        if self.host is not None:
            check_slots(books, self.host)

    def _new_entry(self, key: ItemKey, units: int) -> Entry:
        self.replacements += any(entry.key == key for entry in self._retired)
        entry = self._by_key[key] = Entry(key, units)
        if self.host is not None and (slot := self.host.find(key)) is not None:
            self.host.hold(slot)
            entry.host = slot
        return entry

    def _retire(self, entry: Entry) -> None:
        entry.retired = True
        self._retired.add(entry)
        del self._by_key[entry.key]

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
        self._demote(entry)
        self._forget(entry)

    def _demote(self, entry: Entry) -> None:
        """Keep the rows on the host, unless they are to go for good, or the arena has, or gets, newer ones."""
        if self.host is None or entry.cleared or self._by_key.get(entry.key, entry) is not entry:
            return
        if (slot := self.host.admit(entry.key, entry.units, entry.checksum)) is not None:
            self._demotions.append(Demotion(entry.span, slot))

    def _settle(self, entry: Entry) -> None:
        """After a change: what nobody claims is forgotten or becomes cache."""
        if entry.claims or entry.state is State.WRITING:
            return
        if entry.state is State.READY and not entry.retired:
            entry.last_used = next(self._ticks)
            self._cached[entry] = None
            return
        if entry.state is State.READY:
            self._demote(entry)
        self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        if not entry.retired:
            del self._by_key[entry.key]
        self._retired.discard(entry)
        if self.host is not None and entry.host is not None:
            self.host.let_go(entry.host)
            entry.host = None
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
    if entry.pinned:
        return math.inf
    if not entry.claims and entry.state is State.READY:
        return 0.0
    return 1.0 if entry.retired else 2.0
