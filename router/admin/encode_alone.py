"""An image encoded for nobody: to warm a cache, or to see what an encoder makes of it."""

from triptych import wire
from triptych.errors import InternalError
from triptych.journey import Item, new_request_id
from triptych.pb import encoder_pb2
from triptych.router.fleet.calls import Inbox, Outbox
from triptych.router.fleet.link import WorkerLink
from triptych.router.media.shelf import MediaShelf


async def encode_alone(
    link: WorkerLink, item: Item, shelf: MediaShelf, lease_seconds: float, seconds: float, *, checksums: bool = False
) -> encoder_pb2.EncodeReply:
    """What the encoder answers. Its rows stay as cache, the claim on them is given back.

    seconds:   that it may take
    checksums: want one of the rows
    Raises why the item cannot be encoded.
    """
    request_id = new_request_id()
    envelope = link.envelope(request_id, 0, seconds)
    envelope.checksums = checksums
    start = encoder_pb2.EncodeStart(
        envelope=envelope,
        items=[wire.item_to_pb(item)],
        media=[await shelf.source(item.media, link.media_by_memfd)],
        lease_ms=int(lease_seconds * 1000),
    )
    try:
        reply = await link.hold(_call(link, start, item, shelf, seconds))
    finally:
        await link.cancel(request_id, 0)
    if reply.HasField("failure"):
        raise wire.error_from_failure(reply.failure)
    return reply


async def _call(
    link: WorkerLink, start: encoder_pb2.EncodeStart, item: Item, shelf: MediaShelf, seconds: float
) -> encoder_pb2.EncodeReply:
    call = link.calls.encode(timeout=seconds)
    outbox = Outbox(call)
    await outbox.send(encoder_pb2.EncodeRequest(start=start))
    if not link.media_by_memfd:
        for chunk in shelf.chunks(item.media):
            await outbox.send(encoder_pb2.EncodeRequest(chunk=chunk))
    answer = await Inbox(call).receive()
    if answer is None or len(answer.replies) != 1:
        raise InternalError("an encoder ended a call without an answer")
    return answer.replies[0]
