"""The rules that an embedding store's books keep, restated: what its tests, and a worker's self-test, ask after."""

from collections import Counter
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass

from triptych.engine.extents import Extents
from triptych.engine.host_books import HostBooks
from triptych.engine.store_entry import Entry, ItemKey, State
from triptych.errors import InvariantViolation


@dataclass(frozen=True, slots=True)
class Books:
    """A store's books, for as long as it is being checked."""

    by_key: Mapping[ItemKey, Entry]
    placed: Mapping[int, Entry]  # start -> entry
    cached: Collection[Entry]  # in the order in which they would go
    retired: Set[Entry]
    entries: Set[Entry]  # all of these


def check_entries(books: Books, extents: Extents) -> None:
    """Raises InvariantViolation naming the first rule that does not hold."""
    extents.check()
    if extents.taken != {start: entry.units for start, entry in books.placed.items()}:
        raise InvariantViolation("the arena's taken ranges and the placed entries differ")
    for entry in books.entries:
        _check_entry(entry, books)
    cached = [entry for entry in books.placed.values() if entry.state is State.READY and not entry.claims]
    if list(books.cached) != sorted(cached, key=lambda entry: entry.last_used):
        raise InvariantViolation(f"{len(cached)} entries are ready and unclaimed, {len(books.cached)} are listed so")
    generations = [entry.generation for entry in books.placed.values()]
    if len(set(generations)) != len(generations):
        raise InvariantViolation("two placed entries share a generation")


def check_slots(books: Books, host: HostBooks) -> None:
    """That every slot is kept for the entries that wait for it, and for nothing that the arena has itself."""
    host.check()
    waiting = Counter(id(entry.host) for entry in books.entries if entry.host is not None)
    for slot in host.slots:
        name = f"the host slot at unit {slot.start}"
        if slot.holds != waiting[id(slot)]:
            raise InvariantViolation(f"{name} has {slot.holds} holds, {waiting[id(slot)]} entries wait for it")
        entry = books.by_key.get(slot.key)
        if slot.listed and entry is not None and entry.host is not slot:
            raise InvariantViolation(f"{name} is kept for a key whose entry is not made from it")


def _check_entry(entry: Entry, books: Books) -> None:
    name = f"entry {entry.key.digest.hex()[:8]} ({entry.state.value}, {entry.claims} claims)"
    placed = entry.state in (State.WRITING, State.READY)
    if placed != (books.placed.get(entry.start) is entry):
        raise InvariantViolation(f"{name} is {'not ' if placed else ''}placed at unit {entry.start}")
    if entry.retired == (books.by_key.get(entry.key) is entry):
        raise InvariantViolation(f"{name} is {'retired and still' if entry.retired else 'not'} found by its key")
    if entry.retired != (entry in books.retired):
        raise InvariantViolation(f"{name} is {'not ' if entry.retired else ''}listed as retired")
    if entry.claims < entry.pinned or (entry.claims == 0 and entry.state is State.RESERVED):
        raise InvariantViolation(f"{name} is wanted by nobody, or not by its pin")
    if entry.retired and entry.claims == 0 and entry.state is State.READY:
        raise InvariantViolation(f"{name} is retired, unclaimed and still there")
    if entry.pinned and (entry.retired or entry.state is not State.READY):
        raise InvariantViolation(f"{name} is pinned, and not ready or not to be found")
    if entry.host is not None and entry.state is State.READY:
        raise InvariantViolation(f"{name} has been made, and still holds its host slot")
