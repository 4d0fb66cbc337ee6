"""Keeps claims on encoded rows alive while the request that needs them waits for its prefill worker."""

import asyncio
import logging
from collections.abc import Iterable

import grpc
import grpc.aio

from triptych.journey import ClaimId, new_request_id
from triptych.pb import worker_pb2
from triptych.router.fleet.link import WorkerLink
from triptych.router.tasks import Background
from triptych.transfer.protocol.renewing import Renew, Renewals

logger = logging.getLogger(__name__)

_LONGEST_TIMEOUT_SECONDS = 5.0


class ClaimKeeper:
    """Renews at a third of the lease, one message per owner; an owner that does not answer holds up no other."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        # A question that is not answered by then is asked again: the next one is due.
        self._timeout_seconds = min(_LONGEST_TIMEOUT_SECONDS, lease_seconds / 3)
        self._renewals: Renewals[WorkerLink] = Renewals()
        self._earlier = asyncio.Event()  # something is due earlier than `run` waits for

    def keep(self, owner: WorkerLink, claim_id: bytes) -> None:
        if self._renewals.keep(_now(), owner, ClaimId(claim_id), self._lease_seconds):
            self._earlier.set()

    def drop(self, owner: WorkerLink, claim_ids: Iterable[bytes]) -> None:
        """The consumer has the rows, or nobody wants them; dropping again does nothing."""
        self._renewals.drop(_now(), owner, map(ClaimId, claim_ids))

    def __len__(self) -> int:
        return len(self._renewals)

    async def run(self) -> None:
        """Until cancelled."""
        asking = Background()
        try:
            while True:
                await self._until_due()
                for message in self._renewals.due(_now()):
                    asking.start(self._renew(message))
        finally:
            await asking.finish(0)

    async def _until_due(self) -> None:
        self._earlier.clear()
        left = self._renewals.next_due - _now()
        try:
            await asyncio.wait_for(self._earlier.wait(), left if left < float("inf") else None)
        except TimeoutError:
            pass

    async def _renew(self, message: Renew[WorkerLink]) -> None:
        owner = message.owner
        if owner.is_lost:
            self._renewals.lost(_now(), owner)
            return
        request = worker_pb2.RenewRequest(
            envelope=owner.envelope(new_request_id(), 0, self._timeout_seconds),
            claim_ids=message.claims,
            lease_ms=int(message.lease_seconds * 1000),
        )
        try:
            reply = await owner.calls.renew(request, timeout=self._timeout_seconds)
        except grpc.aio.AioRpcError as error:
            logger.info("claims at worker %s were not renewed: %s", owner.worker_id, error.code().name)
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:  # another process answers there
                self._renewals.drop(_now(), owner, message.claims)
            else:
                self._renewals.failed(_now(), owner)
        else:
            self._renewals.answered(_now(), owner, map(ClaimId, reply.gone))


def _now() -> float:
    return asyncio.get_running_loop().time()
