"""The one stream on which a decode worker sends every token of this router's requests."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from triptych import wire
from triptych.errors import TriptychError, WorkerLost
from triptych.journey import Token
from triptych.pb import common_pb2, decode_pb2
from triptych.router.fleet.calls import Inbox, WorkerCalls

logger = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.2


class TokenSink(Protocol):
    """Where the tokens of one request and attempt go; called on the event loop, must not block."""

    def tokens(self, tokens: Sequence[Token]) -> None: ...

    def waiting(self) -> None:
        """The worker needs its blocks for others, and will go on with it."""

    def failed(self, error: TriptychError) -> None: ...


class TokenFeed:
    """Keeps the stream open and hands its tokens out.

    Tokens sent while the stream was broken are gone, so a break ends every request that listens: a gap in a text
    would be worse than an error.
    """

    def __init__(
        self, calls: WorkerCalls, envelope: Callable[[], common_pb2.Envelope], changed: Callable[[], None]
    ) -> None:
        self.attached = False  # the worker has said so; it takes no reservation before
        self._calls = calls
        self._envelope = envelope
        self._changed = changed
        self._sinks: dict[tuple[bytes, int], TokenSink] = {}

    def subscribe(self, request_id: bytes, attempt: int, sink: TokenSink) -> None:
        self._sinks[request_id, attempt] = sink

    def unsubscribe(self, request_id: bytes, attempt: int) -> None:
        """Later tokens are dropped; unsubscribing again does nothing."""
        self._sinks.pop((request_id, attempt), None)

    def fail_all(self, error: TriptychError) -> None:
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.failed(error)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._listen()
            except TriptychError as error:
                logger.info("token stream broke: %s", error)
            self._tell(attached=False)
            self.fail_all(WorkerLost("a decode worker's token stream broke"))
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen(self) -> None:
        call = self._calls.attach(decode_pb2.AttachRequest(envelope=self._envelope()))
        inbox = Inbox(call)
        while (batch := await inbox.receive()) is not None:
            if not self.attached:
                self._tell(attached=True)
            for sequence in batch.sequences:
                self._hand_out(sequence)

    def _tell(self, attached: bool) -> None:
        self.attached = attached
        self._changed()

    def _hand_out(self, sequence: decode_pb2.SequenceTokens) -> None:
        sink = self._sinks.get((sequence.request_id, sequence.attempt))
        if sink is None:
            return  # cancelled, or of an attempt that has been given up
        if sequence.tokens:
            sink.tokens([wire.token_from_pb(token) for token in sequence.tokens])
        elif not sequence.HasField("failure"):
            sink.waiting()
        if sequence.HasField("failure"):
            self.unsubscribe(sequence.request_id, sequence.attempt)
            sink.failed(wire.error_from_failure(sequence.failure))
