"""How many bytes of strangers' bodies and media the router holds at once."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from triptych.errors import Overloaded


class ByteBudget:
    """Shared by all requests in flight."""

    def __init__(self, limit_bytes: int, changed: Callable[[int], None] = lambda held: None) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._changed = changed

    def holding(self) -> "Holding":
        return Holding(self)

    def check(self, num_bytes: int) -> None:
        """Raises Overloaded where so many more would not fit now."""
        if self.held_bytes + num_bytes > self.limit_bytes:
            raise Overloaded("the server holds as much media as it can; try again later")

    def take(self, num_bytes: int) -> None:
        """Raises Overloaded where so many more do not fit; nothing is taken then."""
        self.check(num_bytes)
        self.held_bytes += num_bytes
        self._changed(self.held_bytes)

    def give_back(self, num_bytes: int) -> None:
        self.held_bytes -= num_bytes
        self._changed(self.held_bytes)


class Holding:
    """One request's share, given back as a whole at its end."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._num_bytes = 0

    def check(self, num_bytes: int) -> None:
        """Raises Overloaded where so many more would not fit now."""
        self._budget.check(num_bytes)

    def take(self, num_bytes: int) -> None:
        """Raises Overloaded."""
        self._budget.take(num_bytes)
        self._num_bytes += num_bytes

    def close(self) -> None:
        """Gives everything back; closing again does nothing."""
        num_bytes, self._num_bytes = self._num_bytes, 0
        self._budget.give_back(num_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
