"""A client's connection: uvicorn's, with what it lacks.

It would wait forever for the rest of a request's head, copies a body five times, has no quick way to send many small
pieces, words its own errors in plain text, and closes under a client that is still sending, whose system then throws
our answer away.
"""

import asyncio
import json
import secrets
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import h11
from starlette.types import Scope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle

from triptych.errors import HeadTooLarge, MalformedRequest, TooManyConnections, TriptychError
from triptych.metrics import RouterMetrics
from triptych.router.edge.failures import count_failure, error_body, error_headers

_EXTENSION = "triptych.chunks"
FLAW_KEY = "triptych.flaw"  # in a scope's state: an error that the edge is to answer with

MOST_HEADERS = 128
_READ_ON_BYTES = 1 << 20  # what is left of a body that nobody wants, for the connection to be worth keeping
_LINGER_BYTES = 64 << 20  # as large as a body may be, unless settings say otherwise
_LINGER_SECONDS = 5.0
_LONGEST_CHUNK = (1 << 64) - 1  # bytes, as the number of a chunk is commonly kept


class ChunkWay:
    """Pieces of a chunked response straight to the socket, once its head has gone by the ASGI way, as its end will.

    A piece costs a format and a write. By the ASGI way it passes every middleware and the protocol's state machine,
    which keeps nothing of the body's inner chunks: measured five times as much CPU.
    """

    def __init__(self, connection: "Connection", cycle: RequestResponseCycle) -> None:
        self._connection = connection
        self._cycle = cycle

    def write(self, piece: bytes) -> bool:
        """Sends one piece, never an empty one; False where the client reads too slowly, and `drained` is to be awaited.

        What is written to a client that has left goes nowhere.
        """
        if self._cycle.disconnected or self._cycle.response_complete:
            return True
        self._connection.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return not self._connection.flow.write_paused

    async def drained(self) -> None:
        """Returns once the client has read most of what was sent, or has left."""
        await self._connection.flow.drain()


def chunk_way(scope: Scope) -> ChunkWay | None:
    """Of the response to this request; None where the server is another one, or the client cannot take chunks."""
    way = scope.get("extensions", {}).get(_EXTENSION)
    return way if isinstance(way, ChunkWay) else None


class _CycleTransport:
    """The transport as one request's answer knows it: closing it is the connection's business."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class Connection(H11Protocol):
    """Closed when a head does not arrive in time; bodies have deadlines of their own, and idling is uvicorn's."""

    head_seconds: ClassVar[float] = 30.0
    most_connections: ClassVar[int] = sys.maxsize

    _deadline: asyncio.TimerHandle | None = None
    _left_to_linger = -1  # bytes; negative: it does not linger
    _cycle_transport: _CycleTransport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._cycle_transport = _CycleTransport(transport, self._part)
        self._watch()
        if len(self.connections) > 2 * self.most_connections:  # too many even to be told so in turn
            self._refuse(503, TooManyConnections("the server has too many clients; try again"))

    def data_received(self, data: bytes) -> None:
        if self._left_to_linger >= 0:
            self._left_to_linger -= len(data)
            if self._left_to_linger < 0:
                self.transport.close()
        elif not self._take_of_body(data):
            super().data_received(data)
            self._watch()

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._begin()
        if getattr(self.conn._reader, "_bytes_in_chunk", 0) > _LONGEST_CHUNK:  # h11 takes 20 digits, and would wait
            self._refuse_chunk()

    def refused(self, error: TriptychError) -> None:
        """Called for whatever is refused before it is a request: what is no HTTP, and who is one too many."""

    def send_400_response(self, msg: str) -> None:
        """Of uvicorn, for what h11 refuses; called while its reason is being handled."""
        reason = sys.exception()
        status = reason.error_status_hint if isinstance(reason, h11.RemoteProtocolError) else 400
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:  # the rest of a request that is being answered
            cycle.disconnected = True
            cycle.message_event.set()
        error: TriptychError = MalformedRequest("the request is not valid HTTP/1.1")
        if status == 431:
            error = HeadTooLarge("the request's line and headers are too long")
        elif status == 501:
            error = MalformedRequest("the only transfer coding that is understood is 'chunked'")
        self._refuse(status, error)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.more_body and not self.transport.is_closing() and not self._is_soon_over():
            self._linger()

    def shutdown(self) -> None:
        if self._left_to_linger >= 0:
            self.transport.close()
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _begin(self) -> None:
        """A new request: its task has been made, and has not run yet."""
        scope, cycle = self.scope, self.cycle
        cycle.transport = self._cycle_transport  # type: ignore[assignment]  # what a cycle uses of it
        if scope["http_version"] == "1.1":
            extensions: dict[str, Any] = scope.setdefault("extensions", {})
            extensions[_EXTENSION] = ChunkWay(self, cycle)
        flaw = self._flaw()
        if flaw is not None:
            scope["state"][FLAW_KEY] = flaw

    def _flaw(self) -> TriptychError | None:
        if len(self.connections) > self.most_connections:
            return TooManyConnections("the server has too many clients; try again")
        if len(self.headers) > MOST_HEADERS:
            return HeadTooLarge(f"the request has {len(self.headers)} headers, at most {MOST_HEADERS} are read")
        size, framings = len(self.scope["raw_path"]) + len(self.scope["query_string"]), 0
        for name, value in self.headers:
            size += len(name) + len(value)
            framings += name == b"transfer-encoding" or name == b"content-length"
        if size > (self.config.h11_max_incomplete_event_size or size):  # h11 looks at what comes in several pieces
            return HeadTooLarge("the request's line and headers are too long")
        # Whoever stands before us may have read the other one, and taken the rest for the next request.
        if framings > 1:
            return MalformedRequest("the request has both a content-length and a transfer-encoding")
        return None

    def _refuse_chunk(self) -> None:
        try:
            raise h11.RemoteProtocolError("a chunk of more than 64 bits")
        except h11.RemoteProtocolError as error:
            self.send_400_response(str(error))

    def _refuse(self, status: int, error: TriptychError) -> None:
        """Answers what never became a request, and parts."""
        self.refused(error)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(error_body(error)).encode()
            told = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "x-request-id": secrets.token_hex(16),
                **error_headers(error),
                "connection": "close",
            }
            # Past h11, in whose eyes a connection with an error, or without a request, has no answer to send.
            lines = [b"%b: %b" % (name.encode(), value.encode()) for name, value in told.items()]
            head = b"HTTP/1.1 %d %b\r\n" % (status, STATUS_PHRASES[status]) + b"\r\n".join(lines)
            self.transport.write(head + b"\r\n\r\n" + body)
        self._linger()

    def _part(self) -> None:
        """Ends the connection, once the client can have read the answer."""
        if self.cycle is not None and self.cycle.more_body:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Sends no more, and reads on for a while without looking at it.

        A connection that is closed under a client's data is reset: the client may never see what was sent before.
        """
        if self._left_to_linger >= 0 or self.transport.is_closing():
            return
        self._stop_watching()
        self._left_to_linger = _LINGER_BYTES
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._deadline = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _is_soon_over(self) -> bool:
        """Whether little is left of the body, of known length, that the client is sure to send."""
        left = getattr(self.conn._reader, "_remaining", _READ_ON_BYTES)
        return left < _READ_ON_BYTES and not any(name == b"expect" for name, _ in self.headers)

    def _take_of_body(self, data: bytes) -> bool:
        """Whether all of it was of a body of declared length: such bytes go to their reader as they are.

        h11 would copy them into its buffer and out of it again, uvicorn once more. What comes with a request's head, or
        with the next one's, is theirs.
        """
        cycle, state = self.cycle, self.conn
        if cycle is None or state.their_state is not h11.SEND_BODY or state.our_state is not h11.SEND_RESPONSE:
            return False
        left = getattr(state._reader, "_remaining", 0)  # of h11's reader by length; others are left alone
        if not 0 < len(data) <= left or cycle.disconnected or cycle.waiting_for_100_continue or state.trailing_data[0]:
            return False
        state._reader._remaining = left - len(data)  # type: ignore[union-attr]
        if cycle.body:
            cycle.body += data
        else:
            cycle.body = data  # type: ignore[assignment]  # uvicorn makes bytes of it, which then is no copy
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()
        if len(data) == left:
            self.handle_events()  # h11 notices the end
        return True

    def _watch(self) -> None:
        """One deadline for the whole head: bytes that trickle in do not move it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_watching()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.head_seconds, self.transport.close)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def connection_class(most: int, metrics: RouterMetrics) -> type[Connection]:
    """Of one server with at most so many connections; uvicorn makes them itself, and hands them nothing of ours."""

    class ServerConnection(Connection):
        most_connections = most

        def refused(self, error: TriptychError) -> None:
            count_failure(metrics, error)

    return ServerConnection
