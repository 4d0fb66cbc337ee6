"""One try at taking a request through all tiers.

Blocks at the decode worker first, then blocks and landing rows at the prefill worker, then encoders, for one window of
items after the other: whoever holds something later in this order never waits for something earlier (a prompt that
waits for its next window needs nothing more to fuse what it has), so requests cannot deadlock one another, and an
encoder's arena only fills with rows that have a place to go. Workers that do both, prefill and decode, keep the order
because a request gets both from one of them.
"""

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, TypeVar

from triptych import wire
from triptych.errors import TriptychError
from triptych.journey import Role
from triptych.pb import common_pb2, prefill_pb2
from triptych.router.fleet.link import WorkerLink
from triptych.router.observe.timeline import Placed
from triptych.router.pipeline.decode import DecodeStage
from triptych.router.pipeline.encode import EncodeStage
from triptych.router.pipeline.prefill import PrefillStage
from triptych.router.pipeline.stage_tools import StageTools
from triptych.router.tasks import first_of
from triptych.stages import Stage

Result = TypeVar("Result")


class Attempt:
    """Ends with every choice finished, or with the first error; then `blamed` tells which stage it came from."""

    def __init__(self, tools: StageTools, avoid: Collection[WorkerLink] = ()) -> None:
        self.blamed: Role | None = None
        self._error: TriptychError | None = None  # what the blamed stage raised
        self._tools = tools
        self._request = tools.request
        self._avoid = avoid
        self._decode: DecodeStage | None = None
        self._prefill: PrefillStage | None = None

    @property
    def failed_at(self) -> WorkerLink | None:
        """The worker the blame falls on; encoders are avoided by their own stage."""
        stage = {Role.PREFILL: self._prefill, Role.DECODE: self._decode}.get(self.blamed or Role.ENCODE)
        return stage.link if stage is not None else None

    @property
    def leaves_work(self) -> bool:
        """Whether a worker still holds something for a request that has all it wants."""
        never_decoded = self._decode is not None and self._request.stage is Stage.PREFILLING
        return never_decoded or self._request.stopped_early

    async def run(self) -> None:
        """Returns once no more tokens are wanted. Raises what went wrong first."""
        try:
            async with asyncio.TaskGroup() as group:
                await self._journey(group)
        except BaseExceptionGroup as errors:
            raise self._error or first_of(errors) from None
        finally:
            if self._decode is not None:
                self._decode.close()

    async def _journey(self, group: asyncio.TaskGroup) -> None:
        if self._request.stage is not Stage.RESERVING:
            self._request.move(Stage.RESERVING)
        watchers = await self._reserve(group) if self._decode_follows else []
        decodes = self._decode.link if self._decode is not None else None
        with self._request.timeline.measure("place"):
            link = await self._blaming(Role.PREFILL, self._tools.fleet.prefill_for(self._avoid, decodes))
        self._note_placed(Role.PREFILL, link, "decodes_too" if link is decodes else "least_queued")
        self._prefill = prefill = PrefillStage(self._tools, link)
        if self._request.prepared.layout.items:
            group.create_task(self._blaming(Role.ENCODE, self._encode(prefill)))
        else:
            self._prefilling()
        kv_begin = self._decode.cached_tokens if self._decode is not None else 0
        running = prefill.run(self._decode is not None, kv_begin, self._take)
        await self._blaming(Role.PREFILL, running)
        if self._decode is not None:
            await self._finish(self._decode)
        for watcher in watchers:
            watcher.cancel()

    @property
    def _decode_follows(self) -> bool:
        """Whether the prefill worker's one token leaves anything to decode."""
        return self._tools.tokens_to_come > 1

    async def _reserve(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        with self._request.timeline.measure("place"):
            link = await self._blaming(Role.DECODE, self._tools.fleet.decode_for(self._avoid))
        self._note_placed(Role.DECODE, link, "most_free")
        self._decode = decode = await self._blaming(Role.DECODE, DecodeStage.reserve(self._tools, link))
        await self._blaming(Role.DECODE, decode.open())
        return [group.create_task(self._blaming(Role.DECODE, work)) for work in (decode.land(), decode.listen())]

    async def _encode(self, prefill: PrefillStage) -> None:
        """What prefill needs, as it gets room for it: nothing of the prompt's cached beginning."""
        encode = EncodeStage(self._tools, prefill.give)
        try:
            while (window := await prefill.windows.get()) is not None:
                if window:
                    if self._request.stage is Stage.RESERVING:
                        self._request.move(Stage.ENCODING)
                    await encode.run(window)
            self._prefilling()
            await prefill.finished.wait()
        finally:
            encode.drop_claims()

    def _prefilling(self) -> None:
        """Every row is given, or the first token has overtaken the news of it."""
        if self._request.stage in (Stage.RESERVING, Stage.ENCODING):
            self._request.move(Stage.PREFILLING)

    async def _take(self, kv: Sequence[common_pb2.KVRef], first: prefill_pb2.FirstTokens | None) -> None:
        """The client has the first tokens before the decode worker is told."""
        to_continue = self._take_first(first) if first is not None else ()
        if self._decode is not None and (kv or to_continue):
            await self._blaming(Role.DECODE, self._decode.give(kv, to_continue))

    def _take_first(self, first: prefill_pb2.FirstTokens) -> Sequence[common_pb2.Token]:
        """Those that a decode worker goes on from; none where they were all there is."""
        request = self._request
        self._prefilling()
        if self._prefill is not None:
            self._prefill.note_times(first)
        if not request.has_tokens:  # else this attempt finds what an earlier one has computed
            request.cached_tokens = first.cached_tokens
        request.deliver([wire.token_from_pb(token) for token in first.tokens])
        if self._decode is None or request.all_finished.is_set():
            return ()
        request.move(Stage.HANDING_OVER)
        return first.tokens

    async def _finish(self, decode: DecodeStage) -> None:
        request = self._request
        if request.stage is not Stage.HANDING_OVER:
            return  # the first tokens were all there is
        await decode.landed.wait()
        request.move(Stage.DECODING)
        request.timeline.has_landed(decode.link.worker_id)
        try:
            await request.all_finished.wait()
        finally:
            request.timeline.has_decoded()

    def _note_placed(self, role: Role, link: WorkerLink, why: str) -> None:
        self._request.timeline.placed.append(Placed(role, link.worker_id, "elsewhere" if self._avoid else why))

    async def _blaming(self, stage: Role, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return await work
        except TriptychError as error:
            if self.blamed is None:
                self.blamed, self._error = stage, error
            raise
