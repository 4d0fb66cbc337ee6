"""Operators' hands on an encoder's cache: rows kept whatever comes, let go again, or forgotten."""

import enum
from collections.abc import Collection
from dataclasses import dataclass

from triptych.engine.embedding_store import EmbeddingStore
from triptych.engine.store_entry import State
from triptych.errors import InvalidRequest, Overloaded


class CacheAction(enum.Enum):
    PIN = "pin"  # keep rows that are ready until they are unpinned or cleared, whatever else needs room
    UNPIN = "unpin"
    CLEAR = "clear"  # forget rows, on the host too; those in use are found no more, and go with their last claim


@dataclass(frozen=True, slots=True)
class CacheFound:
    """What an action has found and dealt with, or found as it wants it."""

    items: int = 0
    num_bytes: int = 0  # of the units their rows take


def control(store: EmbeddingStore, action: CacheAction, digests: Collection[bytes]) -> CacheFound:
    """Do it for every item of the digests; CLEAR without any is for all.

    Raises InvalidRequest for other actions without digests, Overloaded for a pin that would leave too little room:
    what was pinned before it stays so.
    """
    if not digests and action is not CacheAction.CLEAR:
        raise InvalidRequest(f"to {action.value} takes digests of items, none were given", param="digests")
    units = _CONTROLS[action](store, frozenset(digests) if digests else None)
    return CacheFound(len(units), sum(units) * store.unit_bytes)


def _pin(store: EmbeddingStore, digests: frozenset[bytes] | None) -> list[int]:
    entries = [entry for entry in store.found(digests) if entry.state is State.READY]
    for entry in entries:
        if not store.pin(entry):
            raise Overloaded(
                f"{store.pinned_bytes} bytes are pinned; with {entry.units * store.unit_bytes} more, "
                f"less than {store.pins_leave_bytes} in a row would be left for images that come"
            )
    return [entry.units for entry in entries]


def _unpin(store: EmbeddingStore, digests: frozenset[bytes] | None) -> list[int]:
    entries = [entry for entry in store.found(digests) if entry.pinned]
    for entry in entries:
        store.unpin(entry)
    return [entry.units for entry in entries]


def _clear(store: EmbeddingStore, digests: frozenset[bytes] | None) -> list[int]:
    entries = store.found(digests)
    for entry in entries:
        store.clear(entry)
    slots = store.host.clear(digests) if store.host is not None else []
    return [entry.units for entry in entries] + [slot.units for slot in slots]


_CONTROLS = {CacheAction.PIN: _pin, CacheAction.UNPIN: _unpin, CacheAction.CLEAR: _clear}
