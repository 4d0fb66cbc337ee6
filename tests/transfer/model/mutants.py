"""Faults planted on purpose: what each gets wrong, so that the model test is seen to notice it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.transfer.model.planted import Kernel, Piece, Planted
from triptych.engine.embedding_store import EmbeddingStore
from triptych.engine.store_entry import Acquired, Entry, ItemKey
from triptych.journey import ClaimId, Endpoint, RequestId
from triptych.transfer.leases import LeaseTable, OnEnd
from triptych.transfer.protocol.peering import CloseArenas, Neighbourhood, PeerActions, PeerMachine
from triptych.transfer.protocol.pulling import (
    ClaimedUnits,
    FreeDestination,
    PullActions,
    PullMachine,
    Release,
    StartCopy,
)
from triptych.transfer.protocol.renewing import Renew, Renewals
from triptych.transfer.protocol.takeover import FreeBlocks, Takeover, TakeoverActions

Clock = Callable[[], float]
NewId = Callable[[], ClaimId]


class GenerationCheckedBeforeTheCopy(Planted):
    """The words are read first: what is overwritten during the copy is taken for right."""

    def order_of_reads(self, units: Sequence[Piece], words: Piece) -> Sequence[Piece]:
        return [words, *units]


class GenerationNotChecked(Planted):
    """Whatever the words say."""

    def pull_machine(self, claim: ClaimId, owner: Endpoint, deadline: float, checksum: bytes) -> PullMachine:
        class Careless(PullMachine):
            def connected(self, now: float, path: str, claimed: ClaimedUnits) -> PullActions:
                return super().connected(now, path, _Anything(claimed.where, claimed.units, claimed.generations))

        return Careless(claim, owner, deadline, checksum)


class _Anything(ClaimedUnits):
    def difference(self, words: Sequence[int]) -> str:
        return ""


class StampBehindTheBytes(Planted):
    """The owner stamps a unit when it has written it: whoever copies meanwhile sees the old generation."""

    def order_of_writes(self, stamp: Kernel, halves: Sequence[Kernel]) -> Sequence[Kernel]:
        return [*halves, stamp]


class ChecksumNotChecked(Planted):
    """Bits that turn on the way are taken for right."""

    def pull_machine(self, claim: ClaimId, owner: Endpoint, deadline: float, checksum: bytes) -> PullMachine:
        return PullMachine(claim, owner, deadline, b"")


class ReleaseBeforeTheCopyHasEnded(Planted):
    """The claim is given back as soon as the copy has been queued."""

    def pull_machine(self, claim: ClaimId, owner: Endpoint, deadline: float, checksum: bytes) -> PullMachine:
        class Hasty(PullMachine):
            def ready(self, now: float) -> PullActions:
                actions = super().ready(now)
                started = any(isinstance(action, StartCopy) for action in actions)
                return (*actions, *self._release()) if started else actions

        return Hasty(claim, owner, deadline, checksum)


class ReleaseUnderAnAbandonedCopy(Planted):
    """A pull that is given up gives its claim back, though the device still reads."""

    def pull_machine(self, claim: ClaimId, owner: Endpoint, deadline: float, checksum: bytes) -> PullMachine:
        class Hasty(PullMachine):
            def _quarantine(self, kind: Any, reason: str) -> PullActions:
                return (*super()._quarantine(kind, reason), *self._release())

        return Hasty(claim, owner, deadline, checksum)


class QuarantineIgnored(Planted):
    """The destination of a pull that is given up is reused at once, though the device still writes."""

    def pull_machine(self, claim: ClaimId, owner: Endpoint, deadline: float, checksum: bytes) -> PullMachine:
        class Forgetful(PullMachine):
            def _quarantine(self, kind: Any, reason: str) -> PullActions:
                return self._give_up(kind, reason)

        return Forgetful(claim, owner, deadline, checksum)


class DestinationFreedUnderACopy(Planted):
    """As before, but the claim is kept until the copy has ended."""

    def pull_machine(self, claim: ClaimId, owner: Endpoint, deadline: float, checksum: bytes) -> PullMachine:
        class Forgetful(PullMachine):
            def _quarantine(self, kind: Any, reason: str) -> PullActions:
                return (*super()._quarantine(kind, reason), FreeDestination(self.claim))

        return Forgetful(claim, owner, deadline, checksum)


class ReleasedTwice(Planted):
    """A pull gives its claim back when it has landed, and again when it has been summed up."""

    def pull_machine(self, claim: ClaimId, owner: Endpoint, deadline: float, checksum: bytes) -> PullMachine:
        class Eager(PullMachine):
            def summed(self, now: float, checksum: bytes) -> PullActions:
                return (*super().summed(now, checksum), Release(self.owner, self.claim))

        return Eager(claim, owner, deadline, checksum)


class DestinationNeverFreed(Planted):
    """What was held for an abandoned copy stays held when that has ended."""

    def pull_machine(self, claim: ClaimId, owner: Endpoint, deadline: float, checksum: bytes) -> PullMachine:
        class Stuck(PullMachine):
            def copy_ended(self, now: float) -> PullActions:
                return ()

        return Stuck(claim, owner, deadline, checksum)


class DoubleReleaseCountedTwice(Planted):
    """A release that comes again frees again."""

    def lease_table(self, clock: Clock, new_id: NewId) -> LeaseTable:
        class Twice(LeaseTable):
            ends: dict[ClaimId, OnEnd]

            def grant(self, request_id: RequestId, seconds: float, on_end: OnEnd) -> ClaimId:
                claim = super().grant(request_id, seconds, on_end)
                self.__dict__.setdefault("ends", {})[claim] = on_end
                return claim

            def release(self, claim_ids: Iterable[ClaimId]) -> int:
                claims = list(claim_ids)
                late = [claim for claim in claims if claim in self._tombstones]
                return super().release(claims) + self._finish([self.ends[claim] for claim in late])

        return Twice(clock, new_id)


class LeaseOnTheReadersClock(Planted):
    """The deadline travels: the owner compares it with a clock that is not the one it was made with."""

    def lease_table(self, clock: Clock, new_id: NewId) -> LeaseTable:
        class Foreign(LeaseTable):
            def grant(self, request_id: RequestId, seconds: float, on_end: OnEnd) -> ClaimId:
                readers_clock = (request_id[0] - 128) * 10.0
                claim = super().grant(request_id, 3600.0, on_end)
                lease = self._leases[claim]
                lease.deadline = self._clock() + readers_clock + seconds
                self._heap = [(each.deadline, id) for id, each in self._leases.items()]
                self._heap.sort()
                return claim

        return Foreign(clock, new_id)


class NoTombstones(Planted):
    """A claim that has ended was never heard of."""

    def lease_table(self, clock: Clock, new_id: NewId) -> LeaseTable:
        class Amnesiac(LeaseTable):
            def _remove(self, claim_id: ClaimId) -> OnEnd:
                on_end = super()._remove(claim_id)
                self._tombstones.clear()
                return on_end

        return Amnesiac(clock, new_id)


class SweptByTrafficAlone(Planted):
    """No timer: claims end when somebody calls, or never."""

    def lease_table(self, clock: Clock, new_id: NewId) -> LeaseTable:
        class Lazy(LeaseTable):
            def sweep(self) -> int:
                return 0

        return Lazy(clock, new_id)


class RenewalShortens(Planted):
    """Renewing a claim cuts it short."""

    def lease_table(self, clock: Clock, new_id: NewId) -> LeaseTable:
        class Shortening(LeaseTable):
            def renew(self, claim_ids: Iterable[ClaimId], seconds: float) -> list[ClaimId]:
                claims = list(claim_ids)
                gone = super().renew(claims, seconds)
                for claim in set(claims) - set(gone):
                    lease = self._leases[claim]
                    lease.deadline = min(lease.deadline, self._clock() + seconds / 4)
                self._heap = sorted((each.deadline, id) for id, each in self._leases.items())
                return gone

        return Shortening(clock, new_id)


class OneClaimForAllReaders(Planted):
    """Rows that are there are not claimed again: the first reader to leave frees them under the others."""

    def store(self, num_units: int, unit_bytes: int) -> EmbeddingStore:
        class Uncounted(EmbeddingStore):
            def acquire(self, key: ItemKey, num_bytes: int) -> tuple[Entry, Acquired]:
                entry, acquired = super().acquire(key, num_bytes)
                if acquired is Acquired.HIT and entry.claims > 1:
                    entry.claims -= 1
                    self.num_claims -= 1
                return entry, acquired

            def release(self, entry: Entry) -> None:
                if entry.claims:
                    super().release(entry)

        return Uncounted(num_units, unit_bytes)


class BlocksFreedUnderAPull(Planted):
    """A request that is cancelled gives its blocks back at once, though pulls write into them."""

    def takeover(self, prompt_tokens: int) -> Takeover:
        class Hasty(Takeover):
            def _end(self, kind: Any = None, reason: str = "") -> TakeoverActions:
                actions = super()._end(kind, reason)
                if FreeBlocks() in actions:
                    return actions
                return (FreeBlocks(), *actions)

        return Hasty(prompt_tokens)


class StartedBeforeTheLastPull(Planted):
    """Decoding begins with the first tokens, whatever has landed."""

    def takeover(self, prompt_tokens: int) -> Takeover:
        class Hasty(Takeover):
            def first(self, now: float) -> TakeoverActions:
                pulls, self._pulls = self._pulls, {}
                actions = super().first(now)
                self._pulls = pulls
                return actions

        return Hasty(prompt_tokens)


class MappingClosedUnderACopy(Planted):
    """A neighbour that is forgotten is closed at once, lent or not."""

    def neighbourhood(self) -> Neighbourhood:
        class Hasty(PeerMachine):
            def forget(self, now: float) -> PeerActions:
                actions = super().forget(now)
                return actions or (CloseArenas(self.peer, tuple(self._transports)),)

        class Closing(Neighbourhood):
            def find(self, peer: Endpoint) -> PeerMachine:
                known = self._peers.get(peer)
                if known is None or not isinstance(known, Hasty):
                    self._peers[peer] = Hasty(peer)
                return super().find(peer)

        return Closing()


class AnyIncarnationAnswers(Planted):
    """What is meant for a process reaches whoever is at its address now."""

    checks_incarnation = False


class NobodyRenews(Planted):
    """Claims of what waits are left to their leases."""

    def renewals(self) -> Renewals[Endpoint]:
        class Silent(Renewals[Endpoint]):
            def due(self, now: float) -> tuple[Renew[Endpoint], ...]:
                super().due(now)
                return ()

        return Silent()
