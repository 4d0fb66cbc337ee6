"""Items that wait to be encoded, as columns in the order in which they are to go.

Ten thousand may wait, and a batch is chosen from all of them many times a second. So the order is kept as items come
and go instead of being made anew, and what a choice looks at are numpy columns. An item that leaves is marked as gone;
the columns are compacted when most of them are, so that leaving costs a binary search.
"""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triptych.errors import InvariantViolation

Rank = tuple[int, int]  # what goes first: the smaller one
_Key = tuple[Rank, int]  # rank and arrival: no two items share one

_FEWEST_GONE = 64  # below it compaction is not worth while
_FIRST_CAPACITY = 256


@dataclass(frozen=True, slots=True)
class WaitingItem:
    """One item ready to be encoded."""

    arrival: int  # unique; what the caller knows the item by
    encoder_tokens: int
    units: int  # of the arena, in a row
    rank: Rank


@dataclass(frozen=True, slots=True, eq=False)
class WaitingView:
    """All waiting items at one moment, in the order in which they are to go. Its columns are its own."""

    keys: tuple[_Key, ...]  # by place in the columns it was taken of
    places: NDArray[np.int64]  # [items] where each item's key is in `keys`
    tokens: NDArray[np.int64]  # [items] encoder tokens
    units: NDArray[np.int64]  # [items] of the arena
    refused_since: NDArray[np.float64]  # [items] when it first found no room; nan for those that have not asked

    def __len__(self) -> int:
        return len(self.places)

    def item(self, index: int) -> WaitingItem:
        rank, arrival = self.keys[self.places[index]]
        return WaitingItem(arrival, int(self.tokens[index]), int(self.units[index]), rank)


class WaitingColumns:
    """The waiting items. Not thread-safe."""

    def __init__(self) -> None:
        self._keys: list[_Key] = []  # ascending; of the gone too
        self._key_of: dict[int, _Key] = {}  # by arrival; of those that wait
        # As long as the keys, and room for more.
        self._alive = np.zeros(_FIRST_CAPACITY, np.bool_)
        self._tokens = np.zeros(_FIRST_CAPACITY, np.int64)
        self._units = np.zeros(_FIRST_CAPACITY, np.int64)
        self._refused_since = np.full(_FIRST_CAPACITY, np.nan)

    def __len__(self) -> int:
        return len(self._key_of)

    def add(self, item: WaitingItem, refused_since: float = np.nan) -> None:
        """Let an item wait. Raises InvariantViolation if it does already."""
        if item.arrival in self._key_of:
            raise InvariantViolation(f"item {item.arrival} waits already")
        key = (item.rank, item.arrival)
        place = bisect_left(self._keys, key)
        if place == len(self._keys) or self._keys[place] != key:  # else it was here, left, and comes back
            self._open(place)
            self._keys.insert(place, key)
        self._key_of[item.arrival] = key
        self._alive[place], self._tokens[place], self._units[place] = True, item.encoder_tokens, item.units
        self._refused_since[place] = refused_since

    def remove(self, arrival: int) -> None:
        """Forget an item; one that does not wait is none of our business."""
        if (key := self._key_of.pop(arrival, None)) is not None:
            place = bisect_left(self._keys, key)
            self._alive[place] = False
            if len(self._keys) - len(self._key_of) > max(_FEWEST_GONE, len(self._keys) // 2):
                self._compact()

    def rerank(self, arrival: int, rank: Rank) -> None:
        """Give a waiting item another place; how long it has been refused room it keeps."""
        key = self._key_of[arrival]
        place = bisect_left(self._keys, key)
        item = WaitingItem(arrival, int(self._tokens[place]), int(self._units[place]), rank)
        refused_since = float(self._refused_since[place])
        self.remove(arrival)
        self.add(item, refused_since)

    def refuse(self, places: NDArray[np.int64], now: float) -> None:
        """The items at these places of the latest view have found no room."""
        since = self._refused_since[places]
        self._refused_since[places] = np.where(np.isnan(since), now, since)

    def view(self) -> WaitingView:
        """The items as they wait now. Its places hold until the next change."""
        places = np.flatnonzero(self._alive[: len(self._keys)])
        return WaitingView(
            tuple(self._keys), places, self._tokens[places], self._units[places], self._refused_since[places]
        )

    def check(self) -> None:
        """Raises InvariantViolation naming the first rule that does not hold."""
        if any(first >= second for first, second in zip(self._keys, self._keys[1:], strict=False)):
            raise InvariantViolation(f"items wait in the order {self._keys}, expected ascending and each once")
        alive = self._alive[: len(self._keys)]
        if {key[1]: key for key, waits in zip(self._keys, alive, strict=True) if waits} != self._key_of:
            raise InvariantViolation(f"{int(alive.sum())} items wait, {len(self._key_of)} are indexed, or not the same")
        if self._alive[len(self._keys) :].any():
            raise InvariantViolation("an item waits behind the last key")

    def _columns(self) -> tuple[NDArray[np.generic], ...]:
        return (self._alive, self._tokens, self._units, self._refused_since)

    def _open(self, place: int) -> None:
        """Make room for one more at a place; mostly it is the last one, where nothing moves."""
        size = len(self._keys)
        if size == len(self._alive):
            self._alive, self._tokens = np.resize(self._alive, 2 * size), np.resize(self._tokens, 2 * size)
            self._units = np.resize(self._units, 2 * size)
            self._refused_since = np.resize(self._refused_since, 2 * size)
            self._alive[size:] = False
        for column in self._columns():
            column[place + 1 : size + 1] = column[place:size]

    def _compact(self) -> None:
        size = len(self._keys)
        places = np.flatnonzero(self._alive[:size])
        self._keys = [self._keys[place] for place in places.tolist()]
        for column in self._columns():
            column[: len(places)] = column[places]
        self._alive[len(places) : size] = False
