"""Memory with real bytes, and devices that write and copy it piece by piece, at moments of their own.

A unit of a slab is UNIT_BYTES, written in two halves: a reader that comes between them gets a torn unit. As on the real
slabs the owner stamps a unit's generation word before its first overwriting byte, and a reader takes the words last.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from tests.transfer.model.clock import Timeline
from tests.transfer.model.faults import Faults

UNIT_BYTES = 16
_HALF = UNIT_BYTES // 2


class Slab:
    """Units of bytes, each with its generation word."""

    def __init__(self, num_units: int) -> None:
        self.words = [0] * num_units
        self.data = bytearray(num_units * UNIT_BYTES)

    def unit(self, unit: int) -> bytes:
        return bytes(self.data[unit * UNIT_BYTES : (unit + 1) * UNIT_BYTES])

    def units(self, units: Sequence[int]) -> bytes:
        return b"".join(self.unit(unit) for unit in units)

    def write_half(self, unit: int, half: int, content: bytes) -> None:
        begin = unit * UNIT_BYTES + half * _HALF
        self.data[begin : begin + _HALF] = content[half * _HALF : (half + 1) * _HALF]


class Device:
    """A process's device: one stream for its kernels, in order, each taking a while; copies have streams of their own.

    It goes on while its process is stopped, and ends with it.
    """

    def __init__(self, timeline: Timeline, random: Random, faults: Faults) -> None:
        self.alive = True
        self._stalled_until = 0.0  # a fault: nothing moves before
        self._faults = faults
        self._timeline = timeline
        self._random = random
        self._stream: deque[Callable[[], None]] = deque()

    def launch(self, kernel: Callable[[], None]) -> None:
        """Queue a kernel behind those launched before."""
        self._stream.append(kernel)
        if len(self._stream) == 1:
            self._later(self._next)

    def _later(self, run: Callable[[], None]) -> None:
        now = self._timeline.now
        if self._faults.strikes("stall", "device"):
            self.stall(self._faults.pause_seconds())
        longest = 0.3 if self._faults.strikes("dawdle", "device") else 0.006
        self._timeline.after(max(0.0, self._stalled_until - now) + self._random.uniform(0.0002, longest), run)

    def stall(self, seconds: float) -> None:
        self._stalled_until = self._timeline.now + seconds

    def go_on(self) -> None:
        """What waits for a device that has stalled still waits as long."""
        self._stalled_until = 0.0

    def _next(self) -> None:
        if not self.alive:
            return
        self._stream[0]()
        self._stream.popleft()
        if self._stream:
            self._later(self._next)

    def copy(self, pieces: Sequence[Callable[[], bool]], ended: Callable[[], None]) -> None:
        """Do the pieces of one copy in order, interleaved with all else; one that returns False is the last."""
        self._later(lambda: self._copy(pieces, 0, ended))

    def _copy(self, pieces: Sequence[Callable[[], bool]], place: int, ended: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self._stalled_until > self._timeline.now:
            self._later(lambda: self._copy(pieces, place, ended))
            return
        if not pieces[place]() or place + 1 == len(pieces):
            ended()
        elif self._faults.strikes("linger", "copy"):
            self._timeline.after(self._faults.pause_seconds(), self._copy, pieces, place + 1, ended)
        else:
            self._later(lambda: self._copy(pieces, place + 1, ended))
