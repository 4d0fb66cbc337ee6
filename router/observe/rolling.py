"""Counts of what happened lately."""

NUM_PARTS = 60


class RollingCounts:
    """How many requests a window of so many seconds has had up to now, and how many of them were good.

    The window moves on by a sixtieth of itself: it is that much too long at most, and takes the same memory whatever
    its length.
    """

    def __init__(self, seconds: float) -> None:
        self._part_seconds = seconds / NUM_PARTS
        self._totals = [0] * (NUM_PARTS + 1)
        self._good = [0] * (NUM_PARTS + 1)
        self._part = 0  # number of the part that goes on, since the clock began

    def add(self, now: float, good: bool) -> None:
        place = self._move(now)
        self._totals[place] += 1
        self._good[place] += good

    def counts(self, now: float) -> tuple[int, int]:
        """All, and the good ones."""
        self._move(now)
        return sum(self._totals), sum(self._good)

    def _move(self, now: float) -> int:
        """Forgets what is too old; the place of what happens now."""
        part = int(now / self._part_seconds)
        for number in range(max(self._part + 1, part - NUM_PARTS), part + 1):
            place = number % (NUM_PARTS + 1)
            self._totals[place] = self._good[place] = 0
        self._part = max(self._part, part)
        return self._part % (NUM_PARTS + 1)
