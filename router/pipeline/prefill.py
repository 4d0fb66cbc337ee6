"""A prompt goes to a prefill worker; KV refs and the first tokens come back."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from triptych import wire
from triptych.errors import InternalError
from triptych.journey import Role
from triptych.pb import common_pb2, prefill_pb2
from triptych.router.fleet.bookings import Booking
from triptych.router.fleet.calls import Inbox, Outbox
from triptych.router.fleet.link import WorkerLink
from triptych.router.pipeline.stage_tools import StageTools

# KV refs, and behind the last ones the first tokens.
TakeResults = Callable[[Sequence[common_pb2.KVRef], prefill_pb2.FirstTokens | None], Awaitable[None]]


class PrefillStage:
    """One Prefill call; embedding refs are given to it while it runs."""

    def __init__(self, tools: StageTools, link: WorkerLink) -> None:
        self.link = link
        self.windows: asyncio.Queue[tuple[int, ...] | None] = asyncio.Queue()  # items to be encoded; None: no more
        self.finished = asyncio.Event()
        self._tools = tools
        self._call = link.calls.prefill(timeout=tools.seconds_left())
        self._outbox: Outbox[prefill_pb2.PrefillRequest] = Outbox(self._call)
        self._granted: set[int] = set()  # items of all windows so far
        self._more_windows = True
        self._sent_at = 0.0  # on time.perf_counter

    async def run(self, decode_follows: bool, kv_begin: int, take: TakeResults) -> None:
        """Hands on every KV ref, then the first tokens, one per branch; returns when the call has ended.

        kv_begin: tokens whose KV the decode worker has already, which is not sent
        """
        booking = self.link.bookings[Role.PREFILL].add(self._tools.prompt_tokens)
        self._tools.ask(Role.PREFILL, self.link)
        try:
            await self.link.hold(self._talk(self._start(decode_follows, kv_begin), booking, take))
            self.finished.set()
        finally:
            booking.close()
            self._call.cancel()  # does nothing to a call that has ended

    async def give(self, refs: Sequence[prefill_pb2.ItemRef]) -> None:
        await self._outbox.send(prefill_pb2.PrefillRequest(items=refs))

    async def _talk(self, start: prefill_pb2.PrefillStart, booking: Booking, take: TakeResults) -> None:
        self._sent_at = time.perf_counter()
        await self._outbox.send(prefill_pb2.PrefillRequest(start=start))
        booking.sent(self._tools.now())
        self._tools.request.on_placed()
        await self._listen(take)

    def note_times(self, first: prefill_pb2.FirstTokens) -> None:
        """What the worker tells with the first tokens of where their time went."""
        timeline = self._tools.request.timeline
        timeline.add_told(Role.PREFILL, self.link.worker_id, self._sent_at, first.times, first.since_arrival)

    def _take_window(self, accepted: prefill_pb2.Accepted) -> None:
        """Lets the window's items be encoded, but for those whose rows the worker has.

        Raises InternalError for a window that makes no sense.
        """
        request = self._tools.request
        num_items = len(request.prepared.layout.items)
        window = (*accepted.items, *accepted.held)
        fresh = set(window) - self._granted
        if not self._more_windows or len(fresh) < len(window) or max(window, default=-1) >= num_items:
            last = "" if self._more_windows else ", which was its last,"
            raise InternalError(f"a prefill worker granted items {window} of {num_items} behind {self._granted}{last}")
        self._granted |= fresh
        self._more_windows = accepted.more
        request.cached_items += len(accepted.held)
        self._tools.encodes.held(request.prepared.layout.items, accepted.held)
        self.windows.put_nowait(tuple(accepted.items))
        if not accepted.more:
            self.windows.put_nowait(None)

    async def _listen(self, take: TakeResults) -> None:
        inbox: Inbox[prefill_pb2.PrefillReply] = Inbox(self._call)
        done = False
        while (reply := await inbox.receive()) is not None:
            self._tools.request.touch()
            if reply.HasField("accepted"):
                self._take_window(reply.accepted)
            first = reply.first if reply.HasField("first") else None
            if first is not None and self._more_windows:
                raise InternalError("a prefill worker gave first tokens ahead of the last window")
            if reply.kv or first is not None:
                await take(reply.kv, first)
            done = done or first is not None
        if not done:
            raise InternalError("a prefill worker ended a call without the first tokens")

    def _start(self, decode_follows: bool, kv_begin: int) -> prefill_pb2.PrefillStart:
        prepared = self._tools.request.prepared
        return prefill_pb2.PrefillStart(
            envelope=self._tools.envelope(self.link),
            layout=self._tools.request.layout_message,
            sampling=wire.sampling_to_pb(prepared.sampling),
            branches=prepared.branches,
            decode_follows=decode_follows,
            lease_ms=self._tools.lease_ms,
            generated=self._tools.generated,
            cache_salt=prepared.cache_salt,
            kv_begin=kv_begin,
        )
