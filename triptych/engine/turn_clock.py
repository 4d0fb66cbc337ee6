"""For how long a loop has been at what it does now: whoever looks after it can tell one that hangs."""

import time


class TurnClock:
    """Belongs to the loop's thread, but for `seconds`, which any thread may ask."""

    def __init__(self) -> None:
        self._began_at: float | None = None

    def begin(self) -> None:
        self._began_at = time.monotonic()

    def rest(self) -> None:
        """There is nothing to do for now."""
        self._began_at = None

    def seconds(self) -> float:
        """Since the last `begin`; 0 for one that rests."""
        began_at = self._began_at
        return 0.0 if began_at is None else time.monotonic() - began_at
