"""A request's items become claims on encoded rows, over as many encoders as it takes."""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from triptych import wire
from triptych.errors import Draining, InternalError, TransferFailed, TriptychError
from triptych.journey import Item, Role
from triptych.pb import encoder_pb2, prefill_pb2
from triptych.router.fleet.bookings import Booking
from triptych.router.fleet.calls import Inbox, Outbox
from triptych.router.fleet.link import WorkerLink
from triptych.router.observe.timeline import Placed, Retried
from triptych.router.pipeline.stage_tools import StageTools
from triptych.router.tasks import all_or_first_error

logger = logging.getLogger(__name__)

GiveRefs = Callable[[Sequence[prefill_pb2.ItemRef]], Awaitable[None]]


class EncodeStage:
    """Encodes the items of one attempt, window by window; each ref is given on as soon as it is there.

    An encoder that fails costs only its unfinished items: they are tried once more, elsewhere if there is another.
    """

    def __init__(self, tools: StageTools, give: GiveRefs) -> None:
        self._tools = tools
        self._give = give
        self._waiting: dict[int, Item] = {}
        self._failures: dict[WorkerLink, TriptychError] = {}
        self._kept: list[tuple[WorkerLink, bytes]] = []

    async def run(self, window: Sequence[int]) -> None:
        """Returns when the last ref of these items has been given. Raises why an item cannot be encoded."""
        items = self._tools.request.prepared.layout.items
        self._waiting = {index: items[index] for index in window}
        while self._waiting:
            avoid, self._failures = set(self._failures), {}
            shares = await self._shares(avoid)
            await all_or_first_error(self._encode_at(link, share) for link, share in shares.items())
            if not self._waiting:
                return
            error = _worst(self._failures.values()) or InternalError("an encoder left out an item")
            if not self._tools.retries.allow(Role.ENCODE, error):
                raise error
            level = logging.INFO if isinstance(error, Draining) else logging.WARNING
            timeline = self._tools.request.timeline
            timeline.retried.append(Retried(Role.ENCODE, type(error).__name__, timeline.since_start()))
            request_id = self._tools.request.log_id
            logger.log(
                level, "request %s: encode is tried again for %d items: %s", request_id, len(self._waiting), error
            )

    def drop_claims(self) -> None:
        """The rows are where they are needed, or nobody needs them: no more renewals."""
        kept, self._kept = self._kept, []
        for owner, claim_id in kept:
            self._tools.claims.drop(owner, (claim_id,))

    async def _shares(self, avoid: set[WorkerLink]) -> dict[WorkerLink, list[Item]]:
        """What each encoder is asked for; items of one digest stay together, they are encoded once.

        Whoever was asked for an item by an earlier attempt most likely has its rows, or makes them.
        """
        first_by_digest: dict[bytes, Item] = {}
        for item in self._waiting.values():
            first_by_digest.setdefault(item.digest, item)
        link_by_digest = {
            digest: link
            for digest, link in self._tools.encoders.items()
            if digest in first_by_digest and link.takes(Role.ENCODE) and link not in avoid
        }
        new = [digest for digest in first_by_digest if digest not in link_by_digest]
        timeline = self._tools.request.timeline
        timeline.placed += [
            Placed(Role.ENCODE, link.worker_id, "has_rows") for link in dict.fromkeys(link_by_digest.values())
        ]
        if new:
            tokens = [first_by_digest[digest].encoder_tokens for digest in new]
            with timeline.measure("place"):
                chosen = await self._tools.fleet.encoders_for(tokens, avoid)
            why = "elsewhere" if avoid else "least_queued"
            timeline.placed += [Placed(Role.ENCODE, link.worker_id, why) for link in dict.fromkeys(chosen)]
            link_by_digest |= zip(new, chosen, strict=True)
        self._tools.encoders.update(link_by_digest)
        shares: dict[WorkerLink, list[Item]] = {}
        for item in self._waiting.values():
            shares.setdefault(link_by_digest[item.digest], []).append(item)
        return shares

    async def _encode_at(self, link: WorkerLink, share: Sequence[Item]) -> None:
        """One encoder's share; a failure that another try may mend is noted, any other is raised."""
        tokens = sum({item.digest: item.encoder_tokens for item in share}.values())
        booking = link.bookings[Role.ENCODE].add(tokens)
        self._tools.ask(Role.ENCODE, link)
        told: set[int] = set()
        try:
            await link.hold(self._call(link, share, booking, told))
        except TriptychError as error:
            self._tools.encodes.unanswered([item for item in share if item.index not in told], error)
            if not error.retryable:  # whatever an item fails with for good comes by here, once
                self._tools.encodes.failed(error)
            self._note(link, error)
        finally:
            booking.close()

    async def _call(self, link: WorkerLink, share: Sequence[Item], booking: Booking, told: set[int]) -> None:
        """told: gets the indexes of the items for whose want the encoder is not to blame any more"""
        call = link.calls.encode(timeout=self._tools.seconds_left())
        sent_at = time.perf_counter()
        await self._send(link, Outbox(call), share)
        booking.sent(self._tools.now())
        inbox = Inbox(call)
        while (ready := await inbox.receive()) is not None:
            told.update(reply.item_index for reply in ready.replies)
            try:
                await self._take(link, ready.replies, sent_at)
            except TriptychError:  # of one item, or of whoever waits for the rows: the others are given up for its sake
                told.update(item.index for item in share)
                raise

    async def _send(self, link: WorkerLink, outbox: Outbox[encoder_pb2.EncodeRequest], share: Sequence[Item]) -> None:
        shelf, by_memfd = self._tools.shelf, link.media_by_memfd
        indexes = sorted({item.media for item in share})
        told = self._tools.request.layout_message.items
        start = encoder_pb2.EncodeStart(
            envelope=self._tools.envelope(link),
            items=[told[item.index] for item in share],
            media=[await shelf.source(index, by_memfd) for index in indexes],
            lease_ms=self._tools.lease_ms,
        )
        await outbox.send(encoder_pb2.EncodeRequest(start=start))
        if not by_memfd:
            for index in indexes:
                for chunk in shelf.chunks(index):
                    await outbox.send(encoder_pb2.EncodeRequest(chunk=chunk))

    async def _take(self, link: WorkerLink, replies: Sequence[encoder_pb2.EncodeReply], sent_at: float) -> None:
        request = self._tools.request
        request.touch()
        refs: list[prefill_pb2.ItemRef] = []
        for reply in replies:
            request.timeline.add_told(Role.ENCODE, link.worker_id, sent_at, reply.times, reply.since_arrival)
            request.cached_items += reply.cached
            self._tools.encodes.answered(link.worker_id, request.prepared.layout.items, reply, sent_at)
            if reply.HasField("failure"):
                self._note(link, wire.error_from_failure(reply.failure))
            elif self._is_new(link, reply):
                refs.append(prefill_pb2.ItemRef(item_index=reply.item_index, ref=reply.ref))
        if refs:
            await self._give(refs)

    def _is_new(self, link: WorkerLink, reply: encoder_pb2.EncodeReply) -> bool:
        """Keeps the claim of an item that was waited for. False for the same answer again."""
        claim = link, reply.ref.claim_id
        if claim in self._kept:
            return False
        if reply.item_index not in self._waiting:
            raise InternalError(f"an encoder answered for item {reply.item_index}, which it was not asked for")
        self._tools.claims.keep(*claim)
        self._kept.append(claim)
        del self._waiting[reply.item_index]
        return True

    def _note(self, link: WorkerLink, error: TriptychError) -> None:
        if not error.retryable:
            raise error
        self._tools.encodes.failed(error)
        if isinstance(error, TransferFailed) and link.media_by_memfd:
            logger.warning("media go to worker %s in chunks from now on: %s", link.worker_id, error)
            link.media_by_memfd = False
        self._failures[link] = error


def _worst(errors: Iterable[TriptychError]) -> TriptychError | None:
    """The one that costs a retry, where there is one."""
    return min(errors, key=lambda error: isinstance(error, Draining), default=None)
