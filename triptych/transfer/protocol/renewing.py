"""Whoever keeps claims alive: the router while a request queues, the puller once it has accepted.

    event                           gives                         meaning

    keep(now, owner, claim, lease)  whether that is due first     it must live until `drop`; lease: its own duration
    drop(now, owner, claims)                                      released, or nobody wants them
    due(now)                        a Renew for each owner due    time has passed
    answered(now, owner, gone)                                    the owner has renewed all but these
    failed(now, owner)                                            a Renew was not answered
    lost(now, owner)                how many they were            the owner is gone, and its claims with it

A claim is renewed every third of its lease, together with all others of its owner. An owner that does not answer is
asked again after a twelfth, so a lease outlives several lost messages. Nothing is kept of a message that was sent:
a reply that never comes, comes late, or comes twice changes nothing. Durations only: whose clock counts is the
owner's affair.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from triptych.errors import InvariantViolation
from triptych.journey import ClaimId

Owner = TypeVar("Owner", bound=Hashable)

_RENEWALS_A_LEASE = 3
_RETRIES_A_LEASE = 12


@dataclass(frozen=True, slots=True)
class Renew(Generic[Owner]):
    """Ask the owner to let these claims last this long from now."""

    owner: Owner
    claims: tuple[ClaimId, ...]
    lease_seconds: float


@dataclass(slots=True)
class _Kept:
    """Claims at one owner."""

    due: float
    lease_by_claim: dict[ClaimId, float] = field(default_factory=dict)


class Renewals(Generic[Owner]):
    """All claims that one process keeps alive. Not thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[Owner, _Kept] = {}

    def __len__(self) -> int:
        """Claims kept alive."""
        return sum(len(kept.lease_by_claim) for kept in self._kept.values())

    @property
    def next_due(self) -> float:
        """When `due` has something to give; infinite when nothing is kept."""
        return min((kept.due for kept in self._kept.values()), default=float("inf"))

    def keeps(self, owner: Owner, claim: ClaimId) -> bool:
        kept = self._kept.get(owner)
        return kept is not None and claim in kept.lease_by_claim

    # ------------------------------------------------------------------------------------------------- events

    def keep(self, now: float, owner: Owner, claim: ClaimId, lease_seconds: float) -> bool:
        """Whether something is due earlier than before. Keeping it again changes only its lease."""
        before = self.next_due
        due = now + lease_seconds / _RENEWALS_A_LEASE
        kept = self._kept.setdefault(owner, _Kept(due))
        kept.due = min(kept.due, due)
        kept.lease_by_claim[claim] = lease_seconds
        return kept.due < before

    def drop(self, now: float, owner: Owner, claims: Iterable[ClaimId]) -> None:
        kept = self._kept.get(owner)
        if kept is None:
            return
        for claim in claims:
            kept.lease_by_claim.pop(claim, None)
        if not kept.lease_by_claim:
            del self._kept[owner]

    def due(self, now: float) -> tuple[Renew[Owner], ...]:
        messages = []
        for owner, kept in self._kept.items():
            if kept.due <= now:
                leases = kept.lease_by_claim
                kept.due = now + min(leases.values()) / _RENEWALS_A_LEASE
                messages.append(Renew(owner, tuple(leases), max(leases.values())))
        return tuple(messages)

    def answered(self, now: float, owner: Owner, gone: Iterable[ClaimId]) -> None:
        self.drop(now, owner, gone)

    def failed(self, now: float, owner: Owner) -> None:
        kept = self._kept.get(owner)
        if kept is not None:
            kept.due = min(kept.due, now + min(kept.lease_by_claim.values()) / _RETRIES_A_LEASE)

    def lost(self, now: float, owner: Owner) -> int:
        kept = self._kept.pop(owner, None)
        return len(kept.lease_by_claim) if kept is not None else 0

    def check(self) -> None:
        """Raises InvariantViolation with the first rule that does not hold."""
        if any(not kept.lease_by_claim for kept in self._kept.values()):
            raise InvariantViolation("an owner without claims is still renewed")
