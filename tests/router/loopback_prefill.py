"""The prefill half of a loopback worker: windows granted, refs counted, KV that is only said to be there."""

import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from triptych import wire
from triptych.errors import TriptychError
from triptych.journey import BlockRef, Item, KVRef, Layout, Shard, Token, new_claim_id
from triptych.multimodal.layout import verify_layout
from triptych.pb import common_pb2, prefill_pb2, prefill_pb2_grpc
from triptych.stages import StageSpan

if TYPE_CHECKING:
    from tests.router.loopback import LoopbackWorker

FIRST_ID = 40  # letters of the embedded model's vocabulary begin about here
BLOCK_SIZE = 16


def token_id(choice: int, position: int) -> int:
    return FIRST_ID + (7 * choice + position) % 60


async def refuse(context: Any, error: TriptychError) -> None:
    await context.abort(wire.status_code(error), error.message, wire.failure_trailer(error))


def told(arrived: float, stage: str, item: int = -1, before: Sequence[StageSpan] = ()) -> dict[str, Any]:
    """What a reply says of where its time went: in one stage, behind what was before."""
    now = time.monotonic()
    begin = before[-1].end if before else arrived
    times = wire.stage_times_to_pb([*before, StageSpan(stage, begin, now, item)], arrived)
    return {"times": times, "since_arrival": now - arrived}


class LoopbackPrefill(prefill_pb2_grpc.PrefillServicer):
    """Steered by its worker's attributes."""

    def __init__(self, worker: "LoopbackWorker") -> None:
        self._worker = worker

    async def Prefill(self, requests: AsyncIterator[prefill_pb2.PrefillRequest], context: Any) -> AsyncIterator[Any]:
        worker = self._worker
        start = (await anext(requests)).start
        arrived = time.monotonic()
        await worker.admit(start.envelope, context)
        layout = wire.layout_from_pb(start.layout)
        verify_layout(layout)
        generated = wire.tokens_from_bytes(start.generated)
        worker.log.append(f"prefill attempt {start.envelope.attempt} after {len(generated)}")
        await worker.gate.wait()
        worker.salts.append(start.cache_salt)
        worker.kv_begins.append(start.kv_begin)
        cached_tokens = 0
        read: list[StageSpan] = []
        for window, accepted in self._grants(layout):
            worker.log.append(f"window {','.join(str(item.index) for item in window)}")
            cached_tokens = accepted.cached_tokens
            yield prefill_pb2.PrefillReply(accepted=accepted)
            if worker.fail_prefill:
                await refuse(context, worker.fail_prefill.pop(0))
            if not await self._receive(requests, [item for item in window if item.index not in worker.held], context):
                return  # the router has given up
            now = time.monotonic()
            read += [StageSpan("rows_transfer", now, now, item.index) for item in window]
            await worker.window_gate.wait()
        total = layout.num_tokens + len(generated)
        refs = [wire.kv_ref_to_pb(self._kv_ref(start.kv_begin, total))] if start.decode_follows else []
        if refs and not worker.tells_together:
            yield prefill_pb2.PrefillReply(kv=refs)
            refs.clear()
        tokens = [self._first(start, branch, len(generated)) for branch in range(start.branches)]
        first = prefill_pb2.FirstTokens(
            tokens=tokens, cached_tokens=cached_tokens, **told(arrived, "prefill", before=read)
        )
        yield prefill_pb2.PrefillReply(kv=refs, first=first)
        if worker.fail_prefill_late:
            await worker.late_gate.wait()
            await refuse(context, worker.fail_prefill_late.pop(0))

    def _grants(self, layout: Layout) -> list[tuple[Sequence[Item], prefill_pb2.Accepted]]:
        """Every window of the prompt with what is said of it; no rows are awaited for what is granted wrongly."""
        worker = self._worker
        if worker.grant_wrongly:
            wrong, worker.grant_wrongly = worker.grant_wrongly, []
            return [((), accepted) for accepted in wrong]
        cached, needed = layout.items[: worker.cached_items], layout.items[worker.cached_items :]
        cached_tokens = cached[-1].runs[-1].end if cached else 0
        grants = []
        for window, more in _windows(needed, worker.window_items):
            asked = [item.index for item in window if item.index not in worker.held]
            held = [item.index for item in window if item.index in worker.held]
            grants.append(
                (window, prefill_pb2.Accepted(items=asked, cached_tokens=cached_tokens, more=more, held=held))
            )
        return grants

    async def _receive(self, requests: AsyncIterator[Any], window: Sequence[Item], context: Any) -> bool:
        """Whether the rows of all items of the window have come; any other row is a mistake of the router's."""
        left = {item.index: item for item in window}
        while left:
            request = await anext(requests, None)
            if request is None:
                return False
            self._worker.ref_messages += 1
            for given in request.items:
                item = left.pop(given.item_index)
                assert given.ref.item_digest == item.digest
                self._worker.refs += 1
                error = self._worker.fail_prefill_after.pop(self._worker.refs, None)
                if error is not None:
                    await refuse(context, error)
        return True

    def _first(self, start: prefill_pb2.PrefillStart, branch: int, position: int) -> common_pb2.Token:
        return wire.token_to_pb(token_of(self._worker, branch, position, start.sampling.max_tokens))

    def _kv_ref(self, begin: int, end: int) -> KVRef:
        blocks = tuple(BlockRef(index, 1) for index in range(begin // BLOCK_SIZE, -(-end // BLOCK_SIZE)))
        shards = (Shard(0, 2, 0),)
        return KVRef(new_claim_id(), self._worker.endpoint, blocks, begin, end, shards, "float32", b"", 30)


def _windows(items: Sequence[Item], size: int) -> list[tuple[Sequence[Item], bool]]:
    """At least one, maybe empty; each with whether another follows."""
    size = size or len(items)
    begins = range(0, len(items), size) if items else range(1)
    return [(items[begin : begin + size], begin + size < len(items)) for begin in begins]


def token_of(worker: "LoopbackWorker", choice: int, position: int, max_tokens: int) -> Token:
    finish_at = len(worker.says) if worker.says else worker.finish_at
    finish = "stop" if position == finish_at else "length" if position == max_tokens - 1 else ""
    id_ = worker.says[position] if position < len(worker.says) else token_id(choice, position)
    return Token(id_, -0.25, choice, position, finish)
