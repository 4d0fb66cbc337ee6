"""Claims made ready for readers that share no memory with their owner. The owner's side.

Over a network a piece costs as much as a hundred kilobytes more. So the units of a claim that lie scattered are copied,
where the reader asks for it, one behind the other into a slab of their own, their generation words behind them:

    unit | unit | ... | word | word | ... | id | id | ...      whole staging units, with a generation of their own

What the reader takes from there it checks thrice: the ids say that both mean the same units in the same order, the
words that these were right when they were packed, the staging units' own words, read last, that the pack was there.
"""

import bisect
import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from triptych.errors import ClaimExpired, TransferFailed
from triptych.journey import ClaimId, Endpoint, Int64Array
from triptych.transfer.arena import WORD_BYTES, ArenaInfo
from triptych.transfer.cuda_events import new_stream
from triptych.transfer.leases import Claimed, LeaseTable
from triptych.transfer.local import LocalMapping
from triptych.transfer.pull import CopyAbandoned, IsWanted, LandingCopier, Pull, UnitRuns
from triptych.transfer.slab import Slab

log = logging.getLogger(__name__)

STAGING_UNIT_BYTES = 256 << 10  # few words to check, little wasted
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Packed:
    """Where in the owner's staging slab a claim's units are."""

    offset: int  # bytes from the start of its data
    generation: int  # of the staging units there


@dataclass(frozen=True, slots=True)
class Prepared:
    """The same as its reader sees it."""

    arena: ArenaInfo
    packed: Packed


# owner, claim, whether to pack, deadline (time.monotonic), whether it is still wanted, else Cancelled is raised:
# where it is packed; None: where the claim says
Prepare = Callable[[Endpoint, ClaimId, bool, float, IsWanted], Prepared | None]


def words_offset(num_units: int, unit_bytes: int) -> int:
    """Where in a pack its generation words begin."""
    return -(-num_units * unit_bytes // WORD_BYTES) * WORD_BYTES


def packed_bytes(num_units: int, unit_bytes: int) -> int:
    """The size of a pack: units, words, ids."""
    return words_offset(num_units, unit_bytes) + 2 * num_units * WORD_BYTES


class Staging:
    """Makes claims ready. Thread-safe: nothing of it runs on the caller's thread but `prepare` itself."""

    def __init__(
        self,
        slabs: Mapping[int, Slab],
        leases: LeaseTable,
        copier: LandingCopier,
        slab: Slab | None,
    ) -> None:
        """slabs: those that claims are on, by arena id; slab: where packs go, if this worker has any room for them"""
        self._slabs = slabs
        self._leases = leases
        self._copier = copier
        self._slab = slab
        self._room = Room(slab.num_units if slab is not None else 0)
        self._lock = threading.Lock()
        self._generations = itertools.count(1)
        self._packs: dict[ClaimId, Packed] = {}
        self._stuck: list[tuple[Callable[[], bool], range]] = []  # packs whose copy has not ended
        # One stream for all stamps, and none that others use: they are in order, and wait for no model.
        on_gpu = slab is not None and slab.device.type == "cuda"
        self._stream = new_stream(slab.device) if slab is not None and on_gpu else None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="prepare")

    def submit(self, claim_id: ClaimId, pack: bool, deadline: float) -> Future[Packed | None]:
        """`prepare` on a thread of its own kind."""
        return self._threads.submit(self.prepare, claim_id, pack, deadline)

    def prepare(self, claim_id: ClaimId, pack: bool, deadline: float) -> Packed | None:
        """Waits for the claim's event; packs it, once, where that is asked for and there is room. Blocks.

        Raises ClaimExpired for a claim that is over, TransferFailed at the deadline (time.monotonic).
        """
        with self._lock:
            known = self._packs.get(claim_id)
        if known is not None:
            return known
        covers = self._leases.covered(claim_id)
        slab = self._slabs.get(covers.arena) if covers is not None else None
        if covers is None or slab is None:
            raise ClaimExpired(f"claim {claim_id.hex()[:8]} is over; nothing can be read by it")
        source = LocalMapping(slab)
        source.wait_event(covers.event, deadline)
        if not pack or len(covers.units) < 2:
            return None
        return self._pack(claim_id, covers, source, deadline)

    def num_packs(self) -> int:
        """Packs whose claims live."""
        with self._lock:
            return len(self._packs)

    def idle(self) -> bool:
        """Whether all of the staging slab is free."""
        with self._lock:
            self._recover()
            return self._room.idle()

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _pack(self, claim_id: ClaimId, covers: Claimed, source: LocalMapping, deadline: float) -> Packed | None:
        units = np.array(covers.units, dtype=np.int64)
        taken = self._take(packed_bytes(units.size, source.info.unit_bytes))
        if taken is None or self._slab is None:
            return None
        packed = Packed(taken.start * self._slab.unit_bytes, next(self._generations))
        try:
            self._fill(self._slab, taken, packed, source, units, deadline)
        except CopyAbandoned as error:
            with self._lock:
                self._stuck.append((error.ended, taken))
            raise TransferFailed(error.message) from error
        except BaseException:
            self._give_back(taken)
            raise
        return self._keep(claim_id, packed, taken)

    def _keep(self, claim_id: ClaimId, packed: Packed, taken: range) -> Packed:
        """The pack lasts as long as its claim."""
        with self._lock:
            earlier = self._packs.setdefault(claim_id, packed)
        if earlier is not packed:  # asked for twice at once
            self._give_back(taken)
            return earlier
        if not self._leases.on_end(claim_id, partial(self._drop, claim_id, taken)):
            self._drop(claim_id, taken)
            raise ClaimExpired(f"claim {claim_id.hex()[:8]} ended while it was packed")
        return packed

    def _drop(self, claim_id: ClaimId, taken: range) -> None:
        with self._lock:
            self._packs.pop(claim_id, None)
        self._give_back(taken)

    def _fill(
        self, slab: Slab, taken: range, packed: Packed, source: LocalMapping, units: Int64Array, deadline: float
    ) -> None:
        unit_bytes = source.info.unit_bytes
        with torch.cuda.stream(self._stream):  # nothing changes where there is none
            slab.stamp_row(taken, packed.generation)
        whole = slab.data[packed.offset : packed.offset + packed_bytes(units.size, unit_bytes)]
        places = np.arange(units.size, dtype=np.int64)
        into = whole[: units.size * unit_bytes]
        runs = UnitRuns(units, places, unit_bytes)
        pull = Pull(source, into, runs, units, units, 0, scattered=(units, places), home=slab)
        # The words as they were behind the data. A reader compares them: what this owner believes vouches for nothing.
        words = whole[words_offset(units.size, unit_bytes) :].view(torch.int64)
        self._copier.pack(pull, words, deadline)

    def _take(self, num_bytes: int) -> range | None:
        if self._slab is None:
            return None
        with self._lock:
            self._recover()
            return self._room.take(-(-num_bytes // self._slab.unit_bytes))

    def _give_back(self, taken: range) -> None:
        with self._lock:
            self._room.give_back(taken)

    def _recover(self) -> None:
        back = [entry for entry in self._stuck if entry[0]()]
        self._stuck = [entry for entry in self._stuck if entry not in back]
        for _, taken in back:
            self._room.give_back(taken)


class Room:
    """Which units of a slab are free, as few runs: first fit, neighbours joined. Not thread-safe."""

    def __init__(self, num_units: int) -> None:
        self._num_units = num_units
        self._free: list[range] = [range(num_units)] if num_units else []

    def take(self, count: int) -> range | None:
        """Units in a row; None where there are not so many."""
        for index, free in enumerate(self._free):
            if len(free) >= count:
                taken = free[:count]
                self._free[index : index + 1] = [free[count:]] if len(free) > count else []
                return taken
        return None

    def give_back(self, taken: range) -> None:
        at = bisect.bisect_left(self._free, taken.start, key=lambda free: free.start)
        self._free.insert(at, taken)
        for left in (at, at - 1):
            if 0 <= left < len(self._free) - 1 and self._free[left].stop == self._free[left + 1].start:
                joined = range(self._free[left].start, self._free[left + 1].stop)
                self._free[left : left + 2] = [joined]

    def idle(self) -> bool:
        return sum(len(free) for free in self._free) == self._num_units
