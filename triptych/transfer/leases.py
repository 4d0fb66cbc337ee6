"""Claims with a deadline: how long somebody else may still read what is ours.

A claim is granted with what to do when it ends. It ends once: by a release, with its request, or, when the claimant is
never heard of again, at its deadline. Durations travel, deadlines do not: the owner's monotonic clock decides.
"""

import heapq
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from triptych.errors import InvalidRecord, InvariantViolation
from triptych.journey import ClaimId, RequestId, new_claim_id

log = logging.getLogger(__name__)

OnEnd = Callable[[], None]

_TOMBSTONE_SECONDS = 600.0
_MAX_TOMBSTONES = 8192
_MIN_STALE_TO_COMPACT = 256


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim covers at its owner: whole units of one arena, written once the event has completed."""

    arena: int
    units: tuple[int, ...]
    event: int


@dataclass(slots=True)
class _Lease:
    request_id: RequestId
    deadline: float
    on_end: OnEnd
    covers: Claimed | None = None


class LeaseTable:
    """All claims on one worker's memory. Thread-safe; what a claim's end causes runs outside the lock.

    Every lease has exactly one heap entry, never later than its deadline: renewing moves the deadline alone, and a
    sweep that meets the entry puts it back where the lease now ends. So a renewal is O(1), a sweep O(met log n).
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, new_id: Callable[[], ClaimId] = new_claim_id
    ) -> None:
        self._clock = clock
        self._new_id = new_id
        self._lock = threading.Lock()
        self._leases: dict[ClaimId, _Lease] = {}
        self._claims_by_request: dict[RequestId, dict[ClaimId, None]] = {}  # in order of their grants
        self._heap: list[tuple[float, ClaimId]] = []
        self._tombstones: OrderedDict[ClaimId, float] = OrderedDict()  # when each ended, oldest first
        self.granted = 0
        self._noticed: set[ClaimId] = set()  # of the tombstones: those whose reader has not released them itself yet
        self.expired = 0  # claims nobody released
        self.late_releases = 0  # releases of claims that had ended already
        self.unknown_releases = 0  # releases of claims never heard of, or forgotten since
        self.released = 0  # claims given back, or ended with their request
        self.failed_ends = 0  # on_end that raised: what it should have freed may be lost

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, request_id: RequestId, seconds: float, on_end: OnEnd, covers: Claimed | None = None) -> ClaimId:
        """A new claim that ends in `seconds` unless renewed; `on_end` is called exactly once, whoever ends it.

        covers: for owners that readers without shared memory may ask to make the claim ready
        """
        _check_seconds(seconds)
        claim_id = self._new_id()
        with self._lock:
            deadline = self._clock() + seconds
            self.granted += 1
            self._leases[claim_id] = _Lease(request_id, deadline, on_end, covers)
            self._claims_by_request.setdefault(request_id, {})[claim_id] = None
            heapq.heappush(self._heap, (deadline, claim_id))
        return claim_id

    def renew(self, claim_ids: Iterable[ClaimId], seconds: float) -> list[ClaimId]:
        """The claims that are gone; the others now last at least `seconds` from now. Never shortens a claim."""
        _check_seconds(seconds)
        gone = []
        with self._lock:
            now = self._clock()
            for claim_id in claim_ids:
                lease = self._leases.get(claim_id)
                # Past its deadline is gone, swept or not: the answer must not depend on when the sweeper came by.
                if lease is None or lease.deadline <= now:
                    gone.append(claim_id)
                else:
                    lease.deadline = max(lease.deadline, now + seconds)
        return gone

    def covered(self, claim_id: ClaimId) -> Claimed | None:
        """What a living claim covers; None for one that has ended, or that covers nothing it could tell."""
        with self._lock:
            lease = self._leases.get(claim_id)
            return lease.covers if lease is not None and lease.deadline > self._clock() else None

    def on_end(self, claim_id: ClaimId, then: OnEnd) -> bool:
        """Has `then` called too when the claim ends. False, and never called, when it has ended already."""
        with self._lock:
            lease = self._leases.get(claim_id)
            if lease is not None:
                lease.on_end = _both(lease.on_end, then)
        return lease is not None

    def release(self, claim_ids: Iterable[ClaimId], *, by_notice: bool = False) -> int:
        """How many claims this ended. Late and unknown ones are counted, never an error.

        by_notice: the reader's transport said so; the reader's own release follows, and is not late then
        """
        ended = []
        with self._lock:
            for claim_id in claim_ids:
                if claim_id in self._leases:
                    ended.append(self._remove(claim_id))
                    self.released += 1
                    if by_notice:
                        self._noticed.add(claim_id)
                elif claim_id in self._noticed:
                    self._noticed.discard(claim_id)
                elif claim_id in self._tombstones:
                    self.late_releases += not by_notice  # that one only tells again
                else:
                    self.unknown_releases += 1
            self._compact()
        return self._finish(ended)

    def release_request(self, request_id: RequestId) -> int:
        """How many claims this ended: all that the request held."""
        with self._lock:
            claims = tuple(self._claims_by_request.get(request_id, ()))
            ended = [self._remove(claim_id) for claim_id in claims]
            self.released += len(ended)
            self._compact()
        return self._finish(ended)

    def sweep(self) -> int:
        """How many claims had passed their deadline; they are ended now."""
        ended = []
        with self._lock:
            now = self._clock()
            while self._heap and self._heap[0][0] <= now:
                lease = self._leases.get(self._heap[0][1])
                if lease is not None and lease.deadline > now:
                    heapq.heapreplace(self._heap, (lease.deadline, self._heap[0][1]))
                    continue
                _, claim_id = heapq.heappop(self._heap)
                if lease is not None:
                    ended.append(self._remove(claim_id))
            self.expired += len(ended)
            self._bury(now)
            self._compact()
        return self._finish(ended)

    def check(self) -> None:
        """Raises InvariantViolation naming the first broken rule."""
        with self._lock:
            entries: dict[ClaimId, float] = {}
            for index, (deadline, claim_id) in enumerate(self._heap):
                if claim_id in entries:
                    raise InvariantViolation(f"claim {claim_id.hex()} stands in the heap twice")
                _hold(index == 0 or self._heap[(index - 1) // 2] <= self._heap[index], "the heap is out of order")
                entries[claim_id] = deadline
            for claim_id, lease in self._leases.items():
                if broken := self._broken_rule(claim_id, lease, entries.get(claim_id)):
                    raise InvariantViolation(f"claim {claim_id.hex()} {broken}")
            self._check_index()

    def _broken_rule(self, claim_id: ClaimId, lease: _Lease, entry: float | None) -> str:
        if entry is None:
            return "stands in no heap and would never expire"
        if entry > lease.deadline:
            return "would be swept late"
        if claim_id not in self._claims_by_request.get(lease.request_id, ()):
            return "is not indexed under its request"
        return "both lives and has ended" if claim_id in self._tombstones else ""

    def _check_index(self) -> None:
        indexed = [claim for claims in self._claims_by_request.values() for claim in claims]
        ended = self.released + self.expired
        balanced = self.granted == len(self._leases) + ended
        _hold(balanced, f"{self.granted} claims were granted, {len(self._leases)} live and {ended} have ended")
        _hold(all(self._claims_by_request.values()), "a request without claims is still indexed")
        _hold(len(indexed) == len(self._leases), f"{len(indexed)} claims are indexed, {len(self._leases)} live")
        stale = len(self._heap) - len(self._leases)
        _hold(stale <= max(_MIN_STALE_TO_COMPACT, len(self._leases)), f"{stale} stale heap entries")
        _hold(len(self._tombstones) <= _MAX_TOMBSTONES, f"{len(self._tombstones)} tombstones")

    def _remove(self, claim_id: ClaimId) -> OnEnd:
        """Takes the lease out; whoever gets its on_end is the one who must call it."""
        lease = self._leases.pop(claim_id)
        claims = self._claims_by_request[lease.request_id]
        del claims[claim_id]
        if not claims:
            del self._claims_by_request[lease.request_id]
        self._tombstones[claim_id] = self._clock()
        if len(self._tombstones) > _MAX_TOMBSTONES:
            self._noticed.discard(self._tombstones.popitem(last=False)[0])
        return lease.on_end

    def _compact(self) -> None:
        """Rebuilds the heap once most of it is of released claims: long leases must not pile up entries."""
        if len(self._heap) - len(self._leases) > max(_MIN_STALE_TO_COMPACT, len(self._leases)):
            self._heap = [(lease.deadline, claim_id) for claim_id, lease in self._leases.items()]
            heapq.heapify(self._heap)

    def _bury(self, now: float) -> None:
        while self._tombstones and next(iter(self._tombstones.values())) <= now - _TOMBSTONE_SECONDS:
            self._noticed.discard(self._tombstones.popitem(last=False)[0])

    def _finish(self, ended: Sequence[OnEnd]) -> int:
        """Calls each on_end, also when one before it raised: a bug in one owner must not leak another's memory."""
        for on_end in ended:
            try:
                on_end()
            except Exception:
                with self._lock:
                    self.failed_ends += 1
                log.exception("ending a claim failed; what it held may be lost")
        return len(ended)


class Sweeper:
    """Ends overdue claims of several tables from a thread and timer of its own: no traffic is needed."""

    def __init__(self, tables: Iterable[LeaseTable], interval_seconds: float) -> None:
        _check_seconds(interval_seconds)
        self._tables = tuple(tables)
        self._interval_seconds = interval_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-sweeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> bool:
        """Whether the thread has ended; one stuck in an on_end is left behind after the timeout."""
        self._stopping.set()
        if self._thread.ident is None or self._thread is threading.current_thread():
            return self._thread.ident is None
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            log.warning("the lease sweeper did not end within %.1f s", timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_seconds):
            for table in self._tables:
                self._sweep(table)

    def _sweep(self, table: LeaseTable) -> None:
        try:
            expired = table.sweep()
        except Exception:
            log.exception("sweeping leases failed; trying again in %.1f s", self._interval_seconds)
            return
        if expired:
            log.warning("%d claims expired unreleased", expired)


def _both(first: OnEnd, second: OnEnd) -> OnEnd:
    def end() -> None:
        try:
            first()
        finally:
            second()

    return end


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds < float("inf"):
        raise InvalidRecord(f"a duration is {seconds} s, expected a finite one above 0")


def _hold(holds: bool, broken: str) -> None:
    if not holds:
        raise InvariantViolation(broken)
