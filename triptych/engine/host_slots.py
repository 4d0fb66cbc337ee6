"""Room for KV blocks in host memory, as numbers: which slots are free."""

from collections.abc import Sequence

from triptych.errors import InvariantViolation


class HostSlots:
    """A fixed number of slots of one block each. The one given back last goes first: its memory is there already."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> tuple[int, ...] | None:
        """So many slots; None, and none is taken, where fewer are free."""
        if count > len(self._free):
            return None
        return tuple(self._free.pop() for _ in range(count))

    def give_back(self, slots: Sequence[int]) -> None:
        """Raises InvariantViolation when more come back than ever went."""
        self._free.extend(reversed(slots))
        if len(self._free) > self.num_slots:
            raise InvariantViolation(f"{len(self._free)} slots are free, there are {self.num_slots}")

    def check(self, taken: Sequence[int]) -> None:
        """Raises InvariantViolation unless exactly these, and no others, are taken."""
        if sorted((*taken, *self._free)) != list(range(self.num_slots)):
            raise InvariantViolation(
                f"{len(taken)} slots hold KV, {len(self._free)} are free of {self.num_slots}: some twice, or not at all"
            )
