"""What must always hold, asked after every step by somebody who sees all processes at once and the true time.

It keeps its own books of claims, readers and writers, from what happens to the memory, never from what the code under
test believes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tests.transfer.model.clock import Timeline
from tests.transfer.model.memory import Slab
from tests.transfer.model.process import Process
from triptych.journey import ClaimId, Endpoint


class Broken(AssertionError):
    """A promise of the hand-off protocol does not hold."""


@dataclass(slots=True)
class Claim:
    """A claim as its owner granted it."""

    owner: Process
    slab: Slab
    units: tuple[int, ...]
    written: Callable[[], bool]  # whether what it stands for is there; before that nobody may have read it
    last_due: float  # true time at which it ends unless renewed again
    ended: bool = False


@dataclass(slots=True, eq=False)
class Copy:
    """A copy that a device has been told to do and has not ended."""

    reader: Process
    owner: Endpoint
    claim: ClaimId
    targets: tuple[int, ...]
    stamps: tuple[object, ...]  # what says that the targets are still whom they were given to
    stamp_of: Callable[[int], object]  # raises or changes once the target is somebody else's, or nobody's


class Oracle:
    """Raises Broken, with the time and what is wrong, at the step that breaks a promise."""

    def __init__(self, timeline: Timeline, lease_seconds: float, sweep_seconds: float) -> None:
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []
        self.copies: dict[Copy, None] = {}
        self._timeline = timeline
        self._lease_seconds = lease_seconds
        self._sweep_seconds = sweep_seconds
        self._claims: dict[ClaimId, Claim] = {}
        self._open: dict[Process, dict[ClaimId, Claim]] = {}
        self._released: Counter[ClaimId] = Counter()  # by whom it was made for; what a network makes of it is its own
        self._delivered: set[ClaimId] = set()
        self._claims_on: dict[tuple[int, int], list[Claim]] = {}  # by slab and unit

    def hold(self, holds: bool, broken: str) -> None:
        if not holds:
            self.broken.append(f"at {self._timeline.now:.3f} s, step {self._timeline.steps}: {broken}")
            raise Broken(self.broken[0])

    def require_whole(self) -> None:
        """Raises what was broken first, also where the code under test has swallowed it."""
        if self.broken:
            raise Broken(self.broken[0])

    # Owners

    def granted(
        self,
        owner: Process,
        claim: ClaimId,
        slab: Slab,
        units: Iterable[int],
        written: Callable[[], bool],
        seconds: float,
    ) -> None:
        self.hold(claim not in self._claims, "a claim id was granted twice")
        record = Claim(owner, slab, tuple(units), written, self._timeline.now + seconds)
        self._claims[claim] = record
        self._open.setdefault(owner, {})[claim] = record
        for unit in record.units:
            self._claims_on.setdefault((id(slab), unit), []).append(record)
        self.counts["granted"] += 1

    def renewed(self, claims: Iterable[ClaimId], gone: Sequence[ClaimId]) -> None:
        for claim in set(claims) - set(gone):
            record = self._claims[claim]
            self.hold(not record.ended, f"{record.owner.name} renewed a claim that has ended")
            record.last_due = self._timeline.now + self._lease_seconds
            self.counts["renewed"] += 1
        for claim in gone:
            record = self._claims[claim]
            over = record.ended or self._timeline.now >= record.last_due - 1e-6
            self.hold(over, f"{record.owner.name} says that a claim is gone which holds for a while yet")

    def ended(self, claim: ClaimId, by: str) -> None:
        """by: release, request, sweep"""
        record = self._claims[claim]
        self.hold(not record.ended, f"{record.owner.name} ended one claim twice")
        if by == "sweep":
            early = record.last_due - self._timeline.now
            self.hold(early <= 1e-6, f"{record.owner.name} ended a claim {early:.3f} s before its lease was over")
        del self._open[record.owner][claim]
        self._close(record, by)

    def _close(self, record: Claim, by: str) -> None:
        record.ended = True
        for unit in record.units:
            self._claims_on[id(record.slab), unit].remove(record)
        self.counts["ended by " + by] += 1

    def overwrites(self, owner: Process, slab: Slab, unit: int) -> None:
        """The owner changes a unit: nobody may hold a claim on what was there."""
        for record in self._claims_on.get((id(slab), unit), ()):
            self.hold(not record.written(), f"{owner.name} overwrites unit {unit} under a claim")

    def check_overdue(self, owner: Process) -> None:
        """No claim outlives its lease by more than a sweep, while its owner runs."""
        latest = self._timeline.now - 2 * self._sweep_seconds
        for record in self._open.get(owner, {}).values():
            late = latest - record.last_due
            self.hold(late <= 0, f"{owner.name} keeps a claim {late:.3f} s longer than it may")

    def forget_owner(self, owner: Process) -> None:
        """Its memory is gone with it, or nobody's, and so are its own readers."""
        for record in self._open.pop(owner, {}).values():
            self._close(record, "death")
        self.copies = {copy: None for copy in self.copies if copy.reader is not owner}

    # Consumers

    def copying(self, copy: Copy) -> None:
        self.copies[copy] = None
        self.counts["copies"] += 1

    def writes(self, copy: Copy) -> None:
        """A piece of the copy reaches its destination."""
        for target, stamp in zip(copy.targets, copy.stamps, strict=True):
            found = copy.stamp_of(target)
            ours = found == stamp
            self.hold(ours, f"{copy.reader.name} let go of unit {target} while a copy still writes into it ({found})")

    def copied(self, copy: Copy) -> None:
        self.copies.pop(copy, None)

    def check_destinations(self, reader: Process) -> None:
        for copy in self.copies:
            if copy.reader is reader:
                self.writes(copy)

    def releases(self, reader: Process, claim: ClaimId, stray: bool = False) -> None:
        """The consumer gives a claim back; stray: one that it knows nothing of, as of a late message."""
        reads = any(copy.claim == claim and copy.reader is reader for copy in self.copies)
        self.hold(not reads, f"{reader.name} gives a claim back under its own copy")
        if not stray:
            self._released[claim] += 1
            self.hold(self._released[claim] == 1, f"{reader.name} gives a claim back twice")
            self.counts["released"] += 1

    def closes(self, reader: Process, owner: Endpoint) -> None:
        """The consumer closes a neighbour's memory."""
        reads = any(copy.owner == owner and copy.reader is reader for copy in self.copies)
        self.hold(not reads, f"{reader.name} closes memory that its own copy reads")

    def delivered(self, reader: Process, claim: ClaimId, found: bytes, wanted: bytes) -> None:
        self.hold(claim not in self._delivered, f"{reader.name} delivers a claim twice")
        self._delivered.add(claim)
        self.reads_right(reader, found, wanted)
        self.counts["delivered"] += 1

    def reads_right(self, reader: Process, found: bytes, wanted: bytes) -> None:
        self.hold(found == wanted, f"{reader.name} takes wrong bytes for right: {found.hex()}, not {wanted.hex()}")

    # The end

    def check_balance(self) -> None:
        """Every claim that was granted has ended, one way and once."""
        ends = sum(count for what, count in self.counts.items() if what.startswith("ended by "))
        granted = self.counts["granted"]
        self.hold(granted == ends, f"{granted} claims were granted, {ends} have ended")
        self.hold(not self.copies, f"{len(self.copies)} copies have not ended")
