"""When each router's event loop last turned: in memory that its supervisor reads, so that nobody has to be asked.

The loop itself writes it. So a process that is stopped falls silent, and one whose threads go on while its loop hangs
does as well: either has accepted connections on which nothing would ever happen.
"""

import asyncio
import mmap
import time
from collections.abc import Callable

_MOMENT_BYTES = 8
_BEAT_SECONDS = 0.5


class Pulses:
    """One moment for each router, on the monotonic clock, which all processes of a host have in common."""

    def __init__(self, descriptor: int, count: int) -> None:
        self._memory = mmap.mmap(descriptor, self.num_bytes(count))
        self._moments = memoryview(self._memory).cast("d")

    def beat(self, index: int) -> None:
        self._moments[index] = time.monotonic()

    def last(self, index: int) -> float:
        """0 of one that has not begun."""
        return self._moments[index]

    def forget(self, index: int) -> None:
        self._moments[index] = 0.0

    @staticmethod
    def num_bytes(count: int) -> int:
        return count * _MOMENT_BYTES


async def keep_beating(beat: Callable[[], None]) -> None:
    """For as long as the event loop turns, until it is cancelled."""
    while True:
        beat()
        await asyncio.sleep(_BEAT_SECONDS)
