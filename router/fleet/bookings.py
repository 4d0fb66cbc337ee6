"""What a router has given a worker and no report of the worker shows yet.

A reported queue is as old as the report: ten requests placed between two reports would all see the same one and all
choose the same worker. A booking counts until a report that was asked for after the work had been sent.
"""

from collections.abc import Callable

_UNSENT = float("inf")


class Booking:
    """A piece of work at one worker; counts until it is covered by a report or closed."""

    __slots__ = ("_owner", "amount", "sent_at")

    def __init__(self, owner: "Bookings", amount: float) -> None:
        self._owner = owner
        self.amount = amount
        self.sent_at = _UNSENT

    def sent(self, now: float) -> None:
        """The worker has it: a report asked for from now on includes it."""
        self.sent_at = now

    def close(self) -> None:
        """The work is done or given up; closing again does nothing."""
        self._owner.drop(self)


class Bookings:
    """All bookings of one worker in one role."""

    def __init__(self, changed: Callable[[float], None]) -> None:
        """changed: told the total after every change."""
        self.total = 0.0
        self._open: set[Booking] = set()
        self._changed = changed

    def add(self, amount: float) -> Booking:
        booking = Booking(self, amount)
        self._open.add(booking)
        self._count(self.total + amount)
        return booking

    def drop(self, booking: Booking) -> None:
        if booking in self._open:
            self._open.remove(booking)
            self._count(self.total - booking.amount)

    def cover(self, asked_at: float) -> None:
        """A report asked for at this time has come: what had been sent before is in it."""
        self._open = {booking for booking in self._open if booking.sent_at >= asked_at}
        self._count(sum(booking.amount for booking in self._open))

    def _count(self, total: float) -> None:
        self.total = total if self._open else 0.0  # no rounding error outlives the work
        self._changed(self.total)
