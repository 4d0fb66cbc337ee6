"""Many workers that start at once would all read the same disk, and nobody be ready for long: they start in turns."""

BURST = 8  # that may start at once
INTERVAL_SECONDS = 1.0  # between two beyond that


class Pace:
    """A bucket of starts, which fills up again with time. It waits for nobody: one that waits for its place holds up
    no other for longer than its turn."""

    def __init__(self, now: float) -> None:
        self._left = float(BURST)
        self._at = now

    def take(self, now: float) -> bool:
        """Whether one more may start now."""
        self._left = min(float(BURST), self._left + (now - self._at) / INTERVAL_SECONDS)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
