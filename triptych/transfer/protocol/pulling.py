"""One claim at its consumer, from the ref to the verdict, and its release.

    CONNECTING ─connected─▶ AWAITING ─ready─▶ COPYING ─copied─▶ VERIFYING ─summed─▶ LANDED
         └────── refused, lost, cancelled, overdue ──┴─ copy failed, words or sum wrong ──▶ FAILED
                                      COPYING ─overdue, lost, cancelled─▶ QUARANTINED ─copy ended─▶ FAILED

    event                          gives                     meaning

    begin(now)                     Connect                   the ref has been accepted
    connected(now, path, claimed)  AwaitReady                the owner's memory can be read; it must say these words
    refused(now, kind, reason)     Release, Fail             it cannot, or the owner's event can never complete
    ready(now)                     StartCopy                 the owner's event has completed
    copied(now, words, checksum)   Release, Deliver          the copy has ended; its words were read behind its data
                                   Release, Verify           … a checksum is wanted and None was given
    summed(now, checksum)          Deliver                   of what has landed
    copy_failed(now, reason)       Release, Fail             the copy has ended without its data
      … ended=False                HoldDestination, Fail     and may still write
    copy_ended(now)                FreeDestination, Release  a copy that was given up writes no more
    peer_lost(now, reason)         as cancelled              the owner is gone; nothing while VERIFYING
    cancelled(now)                 Release, Fail             nobody wants it any more
      … while COPYING              HoldDestination, Fail
    tick(now)                      as cancelled              time has passed; does something from `deadline` on

What holds whatever comes in whatever order:
- Release once, and only when nothing reads the owner's memory any more: never while COPYING or QUARANTINED.
- Deliver or Fail, once, never both. Deliver only with every word and the checksum as claimed.
- After HoldDestination the destination must not be reused until FreeDestination. Failing without it frees it at once.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from triptych.errors import Cancelled, ClaimExpired, InvariantViolation, TransferFailed, TriptychError, WorkerLost
from triptych.journey import ClaimId, Endpoint


@dataclass(frozen=True, slots=True)
class ClaimedUnits:
    """Which words vouch for a claim, and what they must say.

    where: for messages, "kv arena 2"
    """

    where: str
    units: tuple[int, ...]
    generations: tuple[int, ...]

    def difference(self, words: Sequence[int]) -> str:
        """What the words read behind the data tell of a copy that is not what was claimed; empty when it is."""
        found = tuple(words)
        if found == self.generations:
            return ""
        if len(found) != len(self.generations):
            return f"{len(found)} words came for {len(self.generations)} units of {self.where}"
        wrong = [place for place, word in enumerate(found) if word != self.generations[place]]
        first = wrong[0]
        return (
            f"{len(wrong)} of {len(found)} units of {self.where} were freed or overwritten: "
            f"unit {self.units[first]} has generation {found[first]}, the claim {self.generations[first]}"
        )


@dataclass(frozen=True, slots=True)
class Connect:
    """Find a path to the owner's memory and fit the claim to it: answer `connected` or `refused`."""

    owner: Endpoint


@dataclass(frozen=True, slots=True)
class AwaitReady:
    """Wait for the owner's event: answer `ready` or `refused`."""

    path: str


@dataclass(frozen=True, slots=True)
class StartCopy:
    """Copy the data, then its words: answer `copied`, or `copy_failed`."""

    path: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Sum up what has landed: answer `summed`."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give the claim back. Its loss is made good by the lease."""

    owner: Endpoint
    claim: ClaimId


@dataclass(frozen=True, slots=True)
class Deliver:
    """The destination holds what was claimed."""

    claim: ClaimId


@dataclass(frozen=True, slots=True)
class Fail:
    """Tell whoever waits for the claim: an error of this kind."""

    claim: ClaimId
    kind: type[TriptychError]
    reason: str


@dataclass(frozen=True, slots=True)
class HoldDestination:
    """The copy may still write: nobody may reuse the destination. Comes ahead of Fail."""

    claim: ClaimId


@dataclass(frozen=True, slots=True)
class FreeDestination:
    """Nothing writes any more."""

    claim: ClaimId


PullAction = Connect | AwaitReady | StartCopy | Verify | Release | Deliver | Fail | HoldDestination | FreeDestination
PullActions = tuple[PullAction, ...]


class PullState(enum.StrEnum):
    NEW = "new"
    CONNECTING = "connecting"
    AWAITING = "awaiting"
    COPYING = "copying"
    VERIFYING = "verifying"
    LANDED = "landed"
    FAILED = "failed"
    QUARANTINED = "quarantined"


_UNREAD = (PullState.NEW, PullState.CONNECTING, PullState.AWAITING)  # nothing of the owner's memory is being read
_READING = (PullState.COPYING, PullState.QUARANTINED)
_ENDS = (PullState.LANDED, PullState.FAILED)


class PullMachine:
    """One pull of one claim. Not thread-safe.

    deadline: on the caller's clock; from then on `tick` gives up whatever has not ended
    checksum: the owner's, of all the claim's bytes; empty when there is none
    """

    def __init__(self, claim: ClaimId, owner: Endpoint, deadline: float, checksum: bytes = b"") -> None:
        self.claim = claim
        self.owner = owner
        self.deadline = deadline
        self.state = PullState.NEW
        self.path = ""
        self._checksum = checksum
        self._claimed = ClaimedUnits("", (), ())
        self._releases = 0
        self._verdicts = 0

    @property
    def is_over(self) -> bool:
        """Whether no event can cause anything any more."""
        return self.state in _ENDS

    @property
    def may_write(self) -> bool:
        """Whether the destination may still be written to."""
        return self.state in _READING

    # ------------------------------------------------------------------------------------------------- events

    def begin(self, now: float) -> PullActions:
        if self.state is not PullState.NEW:
            return ()
        if now >= self.deadline:
            return self.tick(now)
        self.state = PullState.CONNECTING
        return (Connect(self.owner),)

    def connected(self, now: float, path: str, claimed: ClaimedUnits) -> PullActions:
        if self.state is not PullState.CONNECTING:
            return ()
        if now >= self.deadline:
            return self.tick(now)
        self.state, self.path, self._claimed = PullState.AWAITING, path, claimed
        return (AwaitReady(path),)

    def refused(self, now: float, kind: type[TriptychError], reason: str) -> PullActions:
        if self.state not in (PullState.CONNECTING, PullState.AWAITING):
            return ()
        return self._give_up(kind, reason)

    def ready(self, now: float) -> PullActions:
        if self.state is not PullState.AWAITING:
            return ()
        if now >= self.deadline:
            return self.tick(now)
        self.state = PullState.COPYING
        return (StartCopy(self.path),)

    def copied(self, now: float, words: Sequence[int], checksum: bytes | None = None) -> PullActions:
        """words: as read behind the last byte of data; checksum: of what has landed, None when not made yet"""
        if self.state is PullState.QUARANTINED:
            return self.copy_ended(now)
        if self.state is not PullState.COPYING:
            return ()
        difference = self._claimed.difference(words)
        if difference:
            return self._give_up(ClaimExpired, difference)
        self.state = PullState.VERIFYING
        released = self._release()
        if not self._checksum:
            return (*released, *self._deliver())
        if checksum is None:
            return (*released, Verify())
        return (*released, *self.summed(now, checksum))

    def summed(self, now: float, checksum: bytes) -> PullActions:
        if self.state is not PullState.VERIFYING:
            return ()
        if checksum != self._checksum:
            reason = f"the copy has checksum {checksum.hex()}, the owner's is {self._checksum.hex()}"
            return self._give_up(TransferFailed, reason)
        return self._deliver()

    def copy_failed(
        self, now: float, reason: str, kind: type[TriptychError] = TransferFailed, ended: bool = True
    ) -> PullActions:
        """ended: whether it is certain that nothing writes into the destination any more"""
        if self.state is PullState.QUARANTINED and ended:
            return self.copy_ended(now)
        if self.state is not PullState.COPYING:
            return ()
        return self._give_up(kind, reason) if ended else self._quarantine(kind, reason)

    def copy_ended(self, now: float) -> PullActions:
        if self.state is not PullState.QUARANTINED:
            return ()
        self.state = PullState.FAILED
        return (FreeDestination(self.claim), *self._release())

    def peer_lost(self, now: float, reason: str) -> PullActions:
        if self.state is PullState.VERIFYING:  # all that was claimed is here
            return ()
        return self._abandon(WorkerLost, reason)

    def cancelled(self, now: float) -> PullActions:
        return self._abandon(Cancelled, "nobody waits for this claim any more")

    def tick(self, now: float) -> PullActions:
        if now < self.deadline:
            return ()
        return self._abandon(TransferFailed, f"the pull is overdue while {self.state}")

    def check(self) -> None:
        """Raises InvariantViolation with the first rule that does not hold."""
        wanted = 0 if self.state in _UNREAD or self.state in _READING else 1
        if self._releases != wanted:
            raise InvariantViolation(f"a claim was released {self._releases} times while its pull is {self.state}")
        wanted = 1 if self.state in (*_ENDS, PullState.QUARANTINED) else 0
        if self._verdicts != wanted:
            raise InvariantViolation(f"{self._verdicts} verdicts were given on a pull that is {self.state}")

    # ------------------------------------------------------------------------------------------------- inside

    def _abandon(self, kind: type[TriptychError], reason: str) -> PullActions:
        """Ends it from outside, in whatever state it is."""
        if self.state in _UNREAD or self.state is PullState.VERIFYING:
            return self._give_up(kind, reason)
        return self._quarantine(kind, reason) if self.state is PullState.COPYING else ()

    def _give_up(self, kind: type[TriptychError], reason: str) -> PullActions:
        """Nothing reads or writes any more."""
        self.state = PullState.FAILED
        self._verdicts += 1
        return (*self._release(), Fail(self.claim, kind, reason))

    def _quarantine(self, kind: type[TriptychError], reason: str) -> PullActions:
        self.state = PullState.QUARANTINED
        self._verdicts += 1
        return (HoldDestination(self.claim), Fail(self.claim, kind, reason))

    def _deliver(self) -> PullActions:
        self.state = PullState.LANDED
        self._verdicts += 1
        return (Deliver(self.claim),)

    def _release(self) -> PullActions:
        """Nothing when it has been released already."""
        if self._releases:
            return ()
        self._releases += 1
        return (Release(self.owner, self.claim),)
