"""Claims that requests hold on encoded rows, and the refs that stand for them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from triptych.engine.embedding_store import EmbeddingStore
from triptych.engine.encoder_jobs import EncodeJob
from triptych.engine.store_entry import Entry
from triptych.journey import ClaimId, EmbeddingRef, Endpoint, RequestId, Shard
from triptych.models.base import VisionTower
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.leases import Claimed, LeaseTable


@dataclass(slots=True, eq=False)
class Grant:
    """One request's claim on one entry, from its lease's beginning to its end."""

    request_id: RequestId
    entry: Entry
    claim_id: ClaimId | None = None  # None while the lease is being made


class RefMaker:
    """Makes refs to rows of one arena. Immutable."""

    def __init__(self, owner: Endpoint, arena: ArenaInfo, tower: VisionTower) -> None:
        self._owner = owner
        self._arena = arena
        self._width = tower.width
        self._levels = tower.levels
        self._dtype = str(tower.dtype).removeprefix("torch.")

    def covers(self, entry: Entry) -> Claimed:
        return Claimed(self._arena.id, tuple(entry.span), entry.event)

    def __call__(self, job: EncodeJob, entry: Entry, claim_id: ClaimId) -> EmbeddingRef:
        offset = entry.start * self._arena.unit_bytes
        return EmbeddingRef(
            claim_id=claim_id,
            owner=self._owner,
            item_digest=job.item.digest,
            rows=job.item.rows,
            width=self._width,
            dtype=self._dtype,
            shards=(Shard(rank=self._arena.rank, arena=self._arena.id, offset=offset),),
            generation=entry.generation,
            lease_seconds=job.lease_seconds,
            levels=self._levels,
            event=entry.event,
            checksum=entry.checksum,
        )


class Grants:
    """The claims this encoder has granted and that have not ended. Not thread-safe: the engine's lock guards it.

    The lease table may be shared with other owners of the process: a request's claims are told apart by this list.
    """

    def __init__(
        self, store: EmbeddingStore, leases: LeaseTable, make_ref: RefMaker, on_end: Callable[[Grant], None]
    ) -> None:
        """on_end: called by the lease table, without its lock or the engine's; must come back to `end`."""
        self._store = store
        self._leases = leases
        self._make_ref = make_ref
        self._on_end = on_end
        self._by_request: dict[RequestId, set[Grant]] = {}

    def __len__(self) -> int:
        return sum(len(grants) for grants in self._by_request.values())

    def grant(self, job: EncodeJob, entry: Entry) -> EmbeddingRef:
        """A ref with a lease of its own. The job's claim on the entry passes to the lease."""
        grant = Grant(job.request_id, entry)
        covers = self._make_ref.covers(entry)
        claim_id = self._leases.grant(job.request_id, job.lease_seconds, partial(self._on_end, grant), covers)
        grant.claim_id = claim_id
        self._by_request.setdefault(job.request_id, set()).add(grant)
        return self._make_ref(job, entry, claim_id)

    def end(self, grant: Grant) -> None:
        """The lease has ended: its claim goes back to the store."""
        grants = self._by_request[grant.request_id]
        grants.remove(grant)
        if not grants:
            del self._by_request[grant.request_id]
        self._store.release(grant.entry)

    def claims_of(self, request_id: RequestId) -> list[ClaimId]:
        """What the lease table must release to end the request's claims here."""
        return [grant.claim_id for grant in self._by_request.get(request_id, ()) if grant.claim_id is not None]
