"""Keeps claims on encoded rows alive while the request that needs them waits for its prefill worker."""

import asyncio
import logging
from collections.abc import Iterable

import grpc.aio

from triptych.journey import new_request_id
from triptych.pb import worker_pb2
from triptych.router.link import WorkerLink

logger = logging.getLogger(__name__)

RENEW_TIMEOUT_SECONDS = 5.0


class ClaimKeeper:
    """Renews at a third of the lease, one message per owner."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._claims: dict[WorkerLink, set[bytes]] = {}

    def keep(self, owner: WorkerLink, claim_id: bytes) -> None:
        self._claims.setdefault(owner, set()).add(claim_id)

    def drop(self, owner: WorkerLink, claim_ids: Iterable[bytes]) -> None:
        """The consumer has the rows, or nobody wants them; dropping again does nothing."""
        kept = self._claims.get(owner)
        if kept is not None:
            kept.difference_update(claim_ids)
            if not kept:
                del self._claims[owner]

    def __len__(self) -> int:
        return sum(len(claim_ids) for claim_ids in self._claims.values())

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            await asyncio.gather(*(self._renew(owner, sorted(ids)) for owner, ids in list(self._claims.items())))

    async def _renew(self, owner: WorkerLink, claim_ids: list[bytes]) -> None:
        if owner.is_lost:
            self.drop(owner, claim_ids)
            return
        request = worker_pb2.RenewRequest(
            envelope=owner.envelope(new_request_id(), 0, RENEW_TIMEOUT_SECONDS),
            claim_ids=claim_ids,
            lease_ms=int(self._lease_seconds * 1000),
        )
        try:
            reply = await owner.calls.renew(request, timeout=RENEW_TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            logger.info("claims at worker %s were not renewed: %s", owner.worker_id, error.code().name)
        else:
            self.drop(owner, reply.gone)
