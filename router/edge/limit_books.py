"""What every tenant has used of its limits, in memory that all routers of a server share.

So limits hold exactly however many processes there are, and outlive each of them. Requests in flight are counted by
process: each writes its own numbers alone, and those of one that died are cleared by whoever watches over it.
"""

import itertools
import struct
from dataclasses import dataclass

from triptych.errors import Overloaded
from triptych.router.common_memory import CommonMemory

NAME_BYTES = 16
_NOBODY = bytes(NAME_BYTES)
_USE = struct.Struct("dddd")
_COUNT_BYTES = 4
_MOST_TENANTS = 1 << 14


@dataclass(slots=True)
class Use:
    """Of one tenant. A bucket is told by the moment at which it will be full again, and by what a minute fills then.

    Moments are on the monotonic clock, which all processes of a host have in common.
    """

    requests_full_at: float = 0.0
    requests_per_minute: float = 0.0
    tokens_full_at: float = 0.0
    tokens_per_minute: float = 0.0


class LimitBooks:
    """Tenants have places, found by digests of their names. All methods are to be called with `memory` entered.

    A place whose tenant has nothing in flight and full buckets says nothing, and may become another's.
    """

    def __init__(self, processes: int = 1, index: int = 0, descriptor: int = -1, places: int = _MOST_TENANTS) -> None:
        """index: of this process; descriptor: of memory of `num_bytes`, none where it is the only one"""
        self.memory = CommonMemory(self.num_bytes(processes, places), descriptor)
        self._places = places
        whole = memoryview(self.memory.bytes)
        self._uses_at = places * NAME_BYTES
        counts_at = self._uses_at + places * _USE.size
        self._running = [
            whole[begin : begin + places * _COUNT_BYTES].cast("I")
            for begin in range(counts_at, counts_at + processes * places * _COUNT_BYTES, places * _COUNT_BYTES)
        ]
        self._index = index

    @staticmethod
    def num_bytes(processes: int, places: int = _MOST_TENANTS) -> int:
        return places * (NAME_BYTES + _USE.size + processes * _COUNT_BYTES)

    def place(self, name: bytes, now: float, hint: int = 0) -> int:
        """Of a tenant. hint: where it was last. Raises Overloaded where every place says something of another."""
        memory = self.memory.bytes
        if memory[hint * NAME_BYTES : (hint + 1) * NAME_BYTES] == name:
            return hint
        at = memory.find(name, 0, self._uses_at)
        while at % NAME_BYTES and at > 0:  # across two names
            at = memory.find(name, at + 1, self._uses_at)
        return at // NAME_BYTES if at >= 0 else self._new_place(name, now)

    def use(self, place: int) -> Use:
        return Use(*_USE.unpack_from(self.memory.bytes, self._uses_at + place * _USE.size))

    def set_use(self, place: int, use: Use) -> None:
        told = (use.requests_full_at, use.requests_per_minute, use.tokens_full_at, use.tokens_per_minute)
        _USE.pack_into(self.memory.bytes, self._uses_at + place * _USE.size, *told)

    def running(self, place: int) -> int:
        """Requests in flight, of all processes."""
        return sum(counts[place] for counts in self._running)

    def enter(self, place: int) -> None:
        self._running[self._index][place] += 1

    def leave(self, place: int) -> None:
        assert self._running[self._index][place] > 0, "more requests left than entered"
        self._running[self._index][place] -= 1

    def forget(self, index: int) -> None:
        """The process has died: nothing of it is in flight any more."""
        self._running[index].cast("B")[:] = bytes(self._places * _COUNT_BYTES)

    def _new_place(self, name: bytes, now: float) -> int:
        first: int = int.from_bytes(name[:4], "little") % self._places
        for place in itertools.chain(range(first, self._places), range(first)):
            at, use = place * NAME_BYTES, self.use(place)
            is_idle = max(use.requests_full_at, use.tokens_full_at) <= now and not self.running(place)
            if is_idle or self.memory.bytes[at : at + NAME_BYTES] == _NOBODY:
                self.set_use(place, Use())
                self.memory.bytes[at : at + NAME_BYTES] = name
                return place
        raise Overloaded("too many keys with limits are in use at once; try again")
