"""Contiguous runs of units in one slab: what is free, what is taken."""

from collections.abc import Mapping
from types import MappingProxyType

from triptych.engine.free_sizes import FreeSizes
from triptych.errors import InvariantViolation


class Extents:
    """Allocator of contiguous unit ranges: best fit, neighbours coalesced at release, either in constant time.

    Knows numbers only; what a unit is (bytes of a slab) is the owner's business. Not thread-safe.
    """

    def __init__(self, num_units: int) -> None:
        if num_units <= 0:
            raise ValueError(f"an arena of {num_units} units, expected at least 1")
        self.num_units = num_units
        self.num_free_units = num_units
        self._taken: dict[int, int] = {}  # start -> units
        self._free: dict[int, int] = {0: num_units}  # start -> units
        self._free_start_by_end: dict[int, int] = {num_units: 0}
        self._sizes = FreeSizes(num_units)
        self._sizes.add(num_units, 0)

    @property
    def taken(self) -> Mapping[int, int]:
        """Units of every taken range by its start."""
        return MappingProxyType(self._taken)

    @property
    def largest_free(self) -> int:
        """Units of the longest free range."""
        return self._sizes.largest

    @property
    def fragmentation(self) -> float:
        """Share of the free units that lies outside the longest free range, 0 to 1."""
        return 1 - self.largest_free / self.num_free_units if self.num_free_units else 0.0

    def reserve(self, units: int) -> int | None:
        """First unit of the tightest free range that holds `units`; None when no range does."""
        if units <= 0:
            raise ValueError(f"cannot reserve {units} units, expected at least 1")
        found = self._sizes.tightest(units)
        if found is None:
            return None
        size, start = found
        self._drop_free(start, size)
        if size > units:
            self._add_free(start + units, size - units)
        self._taken[start] = units
        self.num_free_units -= units
        return start

    def room_without(self, start: int) -> int:
        """Units in a row that would be free were the range at `start` released."""
        end = start + self._taken[start]
        begin = self._free_start_by_end.get(start, start)
        return end + self._free.get(end, 0) - begin

    def release(self, start: int) -> int:
        """Give back the range that begins at `start`; returns its units. InvariantViolation where none begins."""
        units = self._taken.pop(start, None)
        if units is None:
            raise InvariantViolation(f"no range is taken at unit {start}, so none can be released there")
        self.num_free_units += units
        end = start + units
        if end in self._free:
            size = self._free[end]
            self._drop_free(end, size)
            end += size
        if start in self._free_start_by_end:
            before = self._free_start_by_end[start]
            self._drop_free(before, start - before)
            start = before
        self._add_free(start, end - start)
        return units

    def check(self) -> None:
        """Raises InvariantViolation naming the first rule that does not hold."""
        position, was_free = 0, False
        for start, units, is_free in sorted(
            [(start, units, False) for start, units in self._taken.items()]
            + [(start, units, True) for start, units in self._free.items()]
        ):
            if start != position or units <= 0:
                raise InvariantViolation(f"range [{start}, {start + units}) follows one that ends at {position}")
            if is_free and was_free:
                raise InvariantViolation(f"free ranges meet at unit {start} and are not one")
            position, was_free = start + units, is_free
        if position != self.num_units:
            raise InvariantViolation(f"ranges cover {position} units of {self.num_units}")
        self._check_sizes()
        if self._free_start_by_end != {start + units: start for start, units in self._free.items()}:
            raise InvariantViolation("the end index and the free ranges differ")
        if self.num_free_units != sum(self._free.values()):
            raise InvariantViolation(f"{self.num_free_units} units counted free, {sum(self._free.values())} are")

    def _check_sizes(self) -> None:
        if self._sizes.items() != sorted((units, start) for start, units in self._free.items()):
            raise InvariantViolation("the size index and the free ranges differ")
        try:
            self._sizes.check()
        except ValueError as error:
            raise InvariantViolation(str(error)) from error

    def _add_free(self, start: int, units: int) -> None:
        self._free[start] = units
        self._free_start_by_end[start + units] = start
        self._sizes.add(units, start)

    def _drop_free(self, start: int, units: int) -> None:
        del self._free[start]
        del self._free_start_by_end[start + units]
        self._sizes.drop(units, start)
