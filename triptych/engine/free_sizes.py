"""Which sizes free ranges have, and where: the tightest that holds a wanted size, in a few steps however many."""

_BITS = 64


class FreeSizes:
    """Starts of ranges by their size. A tree of bit maps, 64 to a word, says which sizes there are.

    Every method takes a step per level: three for arenas of up to 262,143 units, four for 16 million. The bit maps are
    those of allocators with segregated free lists (two-level segregated fit); here each size has a list of its own, so
    that the tightest range is found, not one of its class.
    """

    def __init__(self, largest: int) -> None:
        """largest: the most units that a range may have"""
        self._starts: dict[int, list[int]] = {}  # by size, in no order
        self._places: dict[int, int] = {}  # of a start in the list of its size
        self._levels: list[list[int]] = []
        count = largest + 1
        while not self._levels or count > 1:
            count = -(-count // _BITS)
            self._levels.append([0] * count)

    @property
    def largest(self) -> int:
        """The largest size there is; 0 without any."""
        index = 0
        for level in reversed(self._levels):
            if not level[index]:
                return 0
            index = index * _BITS + level[index].bit_length() - 1
        return index

    def items(self) -> list[tuple[int, int]]:
        """Every (size, start), ascending."""
        return sorted((size, start) for size, starts in self._starts.items() for start in starts)

    def add(self, size: int, start: int) -> None:
        starts = self._starts.get(size)
        if starts is None:
            starts = self._starts[size] = []
            self._mark(size)
        self._places[start] = len(starts)
        starts.append(start)

    def drop(self, size: int, start: int) -> None:
        """Raises KeyError for a range that is not there."""
        starts, place = self._starts[size], self._places.pop(start)
        last = starts.pop()
        if last != start:  # the last one takes its place
            starts[place] = last
            self._places[last] = place
        if not starts:
            del self._starts[size]
            self._unmark(size)

    def tightest(self, wanted: int) -> tuple[int, int] | None:
        """(size, start) of a range of the least size that is at least `wanted`; None when there is none."""
        size = self._next(wanted)
        return None if size is None else (size, self._starts[size][-1])

    def check(self) -> None:
        """Raises ValueError when bit maps, lists and places differ."""
        found, size = [], self._next(0)
        while size is not None:
            found.append(size)
            size = self._next(size + 1)
        if found != sorted(self._starts) or self.largest != max(found, default=0):
            raise ValueError(f"bit maps name sizes {found}, there are ranges of {sorted(self._starts)}")
        places = {start: place for starts in self._starts.values() for place, start in enumerate(starts)}
        if places != self._places:
            raise ValueError("the places of free ranges in their lists are not where they are")

    def _mark(self, index: int) -> None:
        for level in self._levels:
            index, bit = divmod(index, _BITS)
            known = level[index]
            level[index] = known | 1 << bit
            if known:
                return

    def _unmark(self, index: int) -> None:
        for level in self._levels:
            index, bit = divmod(index, _BITS)
            level[index] &= ~(1 << bit)
            if level[index]:
                return

    def _next(self, index: int) -> int | None:
        """The least marked index that is at least `index`."""
        for height, level in enumerate(self._levels):
            word, bit = divmod(index, _BITS)
            if word >= len(level):
                return None
            rest = level[word] >> bit
            if rest:
                return self._descend(height, index + _lowest(rest))
            index = word + 1
        return None

    def _descend(self, height: int, index: int) -> int:
        for level in reversed(self._levels[:height]):
            index = index * _BITS + _lowest(level[index])
        return index


def _lowest(word: int) -> int:
    """The number of the lowest bit that is set."""
    return (word & -word).bit_length() - 1
