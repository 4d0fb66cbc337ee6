"""Which neighbours must go so that one contiguous run of units comes free."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple


class Occupied(NamedTuple):
    """One taken range and what losing it would cost; an infinite cost makes it immovable."""

    start: int
    end: int
    cost: float


def cheapest_window(occupied: Sequence[Occupied], num_units: int, wanted: int) -> range | None:
    """Indices of the ranges to clear so that `wanted` units in a row are free; None when immovable ones forbid it.

    Chosen so that the dearest cleared range is as cheap as can be, then so that the sum is: with recency as cost this
    is LRU which spares the old entries that would not help. `occupied` ascends by start. Linear in its length.
    """
    spent = [0.0, *accumulate(0.0 if taken.cost == math.inf else taken.cost for taken in occupied)]
    best: tuple[float, float] | None = None
    chosen: range | None = None
    for window, dearest in _tight_windows(occupied, num_units, wanted):
        total = spent[window.stop] - spent[window.start]
        if dearest < math.inf and (best is None or (dearest, total) < best):
            best, chosen = (dearest, total), window
    return chosen


def _tight_windows(occupied: Sequence[Occupied], num_units: int, wanted: int) -> Iterator[tuple[range, float]]:
    """For each first range the fewest neighbours that make room, with the highest cost among them."""
    last = 0
    peaks: deque[int] = deque()  # indices in the window whose cost no later one in it reaches
    for first in range(len(occupied) + 1):
        begin = occupied[first - 1].end if first else 0
        last = max(last, first)
        while _right_edge(occupied, last, num_units) - begin < wanted:
            if last == len(occupied):
                return
            while peaks and occupied[peaks[-1]].cost <= occupied[last].cost:
                peaks.pop()
            peaks.append(last)
            last += 1
        yield range(first, last), occupied[peaks[0]].cost if peaks else 0.0
        if peaks and peaks[0] == first:
            peaks.popleft()


def _right_edge(occupied: Sequence[Occupied], index: int, num_units: int) -> int:
    return occupied[index].start if index < len(occupied) else num_units
