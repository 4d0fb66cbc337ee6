"""One incarnation of one worker, as the router sees it: its state, its load, its calls, its token stream.

A link never changes process: when the worker at the address turns out to be another one, the link is lost, everything
held on it ends with WorkerLost at once, and the fleet makes a new link.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc.aio

from triptych import wire
from triptych.errors import Draining, InvalidRecord, TriptychError, WorkerLost, WrongIncarnation
from triptych.journey import Endpoint, Role, new_request_id
from triptych.pb import common_pb2, worker_pb2
from triptych.router.fleet.bookings import Bookings
from triptych.router.fleet.calls import WorkerCalls
from triptych.router.fleet.link_state import LINK_MOVES, WHY, LinkState, Trial
from triptych.router.fleet.router_identity import RouterIdentity
from triptych.router.fleet.token_feed import TokenFeed

logger = logging.getLogger(__name__)

MISSES_UNTIL_LOST = 3
CANCEL_TIMEOUT_SECONDS = 2.0

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class KnownWorker:
    """A worker the router is told about; incarnation 0 means that its Status is to tell."""

    worker_id: str
    endpoint: Endpoint
    roles: frozenset[Role] = frozenset()  # empty: its Status is to tell


class WorkerLink:
    """Owned by the fleet; requests hold it while they have work there."""

    def __init__(
        self,
        worker: KnownWorker,
        identity: RouterIdentity,
        changed: Callable[["WorkerLink"], None],
        booked: Callable[["WorkerLink", Role, float], None],
    ) -> None:
        """changed: told of any news but bookings, which have a call of their own: they come with every request."""
        self.worker_id = worker.worker_id
        self.address = worker.endpoint.address
        self.incarnation = worker.endpoint.incarnation
        self.roles = worker.roles
        self.state = LinkState.UNKNOWN
        self.listed = True  # whoever knows the cluster still names it; otherwise it only finishes what it has
        self.status = worker_pb2.StatusReply()
        self.gauges: dict[str, float] = {}
        self.media_by_memfd = False
        self.bookings = {role: Bookings(partial(booked, self, role)) for role in Role}
        self._identity = identity
        self._changed = changed
        self.trial = Trial(passed=not identity.self_test)
        self._silence = "it has not answered yet"
        self._misses = 0
        self._ask_now = asyncio.Event()
        self._channel = identity.membership.aio_channel(self.address)
        self.calls = WorkerCalls(self._channel)
        self.tokens = TokenFeed(
            self.calls, lambda: self.envelope(new_request_id(), 0, _FOREVER_SECONDS), lambda: changed(self)
        )
        self._held: set[asyncio.Task[Any]] = set()
        self._tasks = [asyncio.create_task(self._watch(), name=f"watch {self.worker_id}")]

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.address, self.incarnation)

    @property
    def is_lost(self) -> bool:
        return self.state is LinkState.LOST

    def takes(self, role: Role) -> bool:
        if self.state is not LinkState.READY or not self.listed or role not in self.roles:
            return False
        return role is not Role.DECODE or self.tokens.attached

    @property
    def can_answer(self) -> bool:
        """Whether the tokens it decodes, if it does, would arrive here."""
        return Role.DECODE not in self.roles or self.tokens.attached

    @property
    def reason(self) -> str:
        """Why it takes nothing, for whoever wants to know; empty where it does."""
        if self.state is LinkState.UNKNOWN:
            return self._silence
        if self.state is LinkState.READY:
            return "" if self.can_answer else "its tokens do not arrive here yet"
        return WHY[self.state] or self.trial.verdict or self.trial.trouble or "the self-test has not come to it yet"

    def prove(self) -> None:
        """The self-test has passed."""
        self.trial.passed = True
        self._judged(LinkState.READY)

    def condemn(self, verdict: str) -> None:
        """The self-test came out wrong, and it is this worker's doing."""
        self.trial.verdict = verdict
        self._judged(LinkState.FAULTY)

    def postpone(self, trouble: str, next_at: float) -> None:
        """The self-test failed, for whatever reason."""
        self.trial.trouble, self.trial.next_at = trouble, next_at
        self.trial.tries += 1

    def envelope(self, request_id: bytes, attempt: int, deadline_seconds: float) -> common_pb2.Envelope:
        identity = self._identity
        return wire.envelope(
            request_id, attempt, identity.router_id, self.incarnation, deadline_seconds, identity.fingerprint
        )

    async def hold(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of work that depends on this worker; WorkerLost as soon as the worker is known to be lost."""
        if self.is_lost:
            work.close()
            raise self._loss()
        task = asyncio.ensure_future(work)
        self._held.add(task)
        try:
            return await task
        except WorkerLost as error:
            self._doubt(error)
            raise
        except Draining:
            if self.state is LinkState.READY:  # its Status will say so, too, a moment later
                self._move(LinkState.DRAINING)
                self._changed(self)
            raise
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if task.cancelled() and self.is_lost and not (waiting and waiting.cancelling()):
                raise self._loss() from None
            raise
        finally:
            self._held.discard(task)

    async def cancel(self, request_id: bytes, attempt: int) -> None:
        """Asks the worker to free what the request holds; a worker that cannot be asked frees it by its leases."""
        if self.state is LinkState.LOST:
            return
        envelope = self.envelope(request_id, attempt, CANCEL_TIMEOUT_SECONDS)
        try:
            await self.calls.cancel(worker_pb2.CancelRequest(envelope=envelope), timeout=CANCEL_TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            logger.info("worker %s was not told of a cancel: %s", self.worker_id, error.code().name)

    def lose(self, reason: str, *, is_orderly: bool = False) -> None:
        """Ends the link and everything held on it; losing it again does nothing.

        is_orderly: nothing has gone wrong, as where a worker had drained before it ended
        """
        if self.state is LinkState.LOST:
            return
        if is_orderly or self.status.state == "draining":
            logger.info("worker %s at %s is let go of: %s", self.worker_id, self.address, reason)
        else:
            logger.warning("worker %s at %s is lost: %s", self.worker_id, self.address, reason)
        self._move(LinkState.LOST)
        self.tokens.fail_all(self._loss())
        for task in self._held:
            task.cancel()
        self._changed(self)

    async def close(self) -> None:
        """Frees the channel; the link is lost afterwards."""
        self.lose("the router lets go of it", is_orderly=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    def _judged(self, state: LinkState) -> None:
        if self.state is LinkState.TESTING:  # else its next answer brings it there
            self._move(state)
            self._changed(self)

    def _doubt(self, error: WorkerLost) -> None:
        """A call broke: nothing new goes there until the worker has answered again."""
        if isinstance(error, WrongIncarnation):
            self.lose("another process answers at its address")
        elif self.state is LinkState.READY:
            self._move(LinkState.UNKNOWN)
            self._changed(self)
        self._ask_now.set()

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        while self.state is not LinkState.LOST:
            self._ask_now.clear()
            asked_at = clock()
            try:
                reply = await self.calls.status(self._question(), timeout=self._identity.status_timeout_seconds)
            except grpc.aio.AioRpcError as error:
                self._missed(error)
            else:
                self._heard(reply, asked_at)
            try:
                async with asyncio.timeout(self._identity.status_interval_seconds):
                    await self._ask_now.wait()
            except TimeoutError:
                pass

    def _question(self) -> worker_pb2.StatusRequest:
        identity = self._identity
        request = worker_pb2.StatusRequest(
            envelope=wire.envelope(new_request_id(), 0, identity.router_id, 0, identity.status_timeout_seconds, b"")
        )
        if self._identity.probe is not None and not self.status.worker_id:
            where = self._identity.probe.descriptor
            request.probe.CopyFrom(
                worker_pb2.MemfdProbe(host_id=where.host_id, pid=where.pid, fd=where.fd, nonce=self._identity.nonce)
            )
        return request

    def _missed(self, error: grpc.aio.AioRpcError) -> None:
        self._misses += 1
        ours = wire.error_from_rpc(error)  # which words for requests that their worker has gone
        self._silence = f"it does not answer ({error.code().name})" if type(ours) is WorkerLost else ours.message
        # One that has never answered may be coming, unless nobody speaks of it any more.
        is_expected = self.listed and not self.status.worker_id
        if self._misses >= MISSES_UNTIL_LOST and not is_expected:
            self.lose(f"{self._misses} questions unanswered, the last with {error.code().name}")
        elif self.state is not LinkState.UNKNOWN:
            self._move(LinkState.UNKNOWN)
            self._changed(self)

    def _heard(self, reply: worker_pb2.StatusReply, asked_at: float) -> None:
        if self.state is LinkState.LOST:
            return
        self._misses = 0
        if self.incarnation not in (0, reply.incarnation):
            self.lose("another process answers at its address")
            return
        if not self.status.worker_id:
            self._meet(reply)
        self.status = reply
        self.gauges = {gauge.name: gauge.value for gauge in reply.gauges}
        for bookings in self.bookings.values():
            bookings.cover(asked_at)
        state = self._state_told_by(reply)
        if state is not self.state:
            self._move(state)
        self._changed(self)

    def _meet(self, reply: worker_pb2.StatusReply) -> None:
        """The first answer: who it is, and whether it can read this process's media memory."""
        self.incarnation = reply.incarnation
        self.roles = frozenset(Role(role) for role in reply.roles if role in set(Role)) or self.roles
        self.media_by_memfd = self._identity.probe is not None and reply.probe_readable
        if self._identity.probe is not None and not reply.probe_readable:
            logger.info("media go to worker %s in chunks: %s", self.worker_id, reply.probe_reason)
        if Role.DECODE in self.roles:
            self._tasks.append(asyncio.create_task(self.tokens.run(), name=f"tokens of {self.worker_id}"))

    def _state_told_by(self, reply: worker_pb2.StatusReply) -> LinkState:
        if reply.state == "draining":
            return LinkState.DRAINING
        if reply.state != "ready":
            self._silence = f"it is {reply.state}"
            return LinkState.UNKNOWN
        if reply.model_fingerprint != self._identity.fingerprint or reply.protocol != wire.PROTOCOL:
            return LinkState.UNFIT
        if self.trial.verdict:
            return LinkState.FAULTY
        return LinkState.READY if self.trial.passed else LinkState.TESTING

    def _move(self, state: LinkState) -> None:
        if state not in LINK_MOVES[self.state]:
            raise InvalidRecord(f"a worker cannot go from {self.state} to {state}")
        logger.info("worker %s at %s: %s -> %s", self.worker_id, self.address, self.state, state)
        self.state = state

    def _loss(self) -> TriptychError:
        return WorkerLost(f"worker {self.worker_id} went away while it held the request")


_FOREVER_SECONDS = 3600.0 * 24
