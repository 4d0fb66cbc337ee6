"""Reading what a client sends, and noticing when it leaves."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from triptych.errors import BodyTooLarge, Cancelled, InvalidRequest
from triptych.router.edge.budget import Holding

Result = TypeVar("Result")

# Every value of JSON but the first stands behind one of these, of which base64 has none: images may be as large as
# they are, while what a parser makes of the rest stays within tens of megabytes and a fraction of a second.
_BEFORE_VALUES = (b",", b"[", b"{")
MOST_VALUES = 1 << 19
_FEW_SIGNS = 64  # of a piece: more are counted
_ALWAYS_QUICK_BYTES = 16 << 10
_MAYBE_QUICK_BYTES = 8 << 20
_FEW = 1024
SLOWEST_BYTES_PER_SECOND = 16 << 10
_AHEAD_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Body:
    """What a client has sent.

    num_signs: how many of the signs that begin a JSON value are in it; mostly that many values, and never fewer
    """

    data: bytes
    num_signs: int

    @property
    def is_quickly_parsed(self) -> bool:
        """Whether a parser goes over it at the speed of memory, however long its strings of base64 are."""
        if len(self.data) < _ALWAYS_QUICK_BYTES:
            return True
        few = len(self.data) < _MAYBE_QUICK_BYTES and self.num_signs < _FEW
        return few and num_found(self.data, b"\\", _FEW) < _FEW  # escapes take their time


async def read_body(http: Request, most_bytes: int, pause_seconds: float, holding: Holding) -> Body:
    """The whole body, meant to be JSON, counted in the holding while it comes.

    Raises BodyTooLarge and Overloaded, before reading where the length is declared; InvalidRequest for a client that
    pauses too long, or sends next to nothing without ever pausing.
    """
    declared = http.headers.get("content-length", "")
    length = int(declared[:20]) if declared.isdigit() else 0
    if length > most_bytes:
        raise _too_large(most_bytes)
    share = _Share(length, holding)
    pieces, num_bytes, num_values = [], 0, 0
    stream = http.stream()
    now = asyncio.get_running_loop().time
    latest_end = now() + pause_seconds
    try:
        while True:
            async with asyncio.timeout_at(min(now() + pause_seconds, latest_end)):
                piece = await anext(stream)
            latest_end += len(piece) / SLOWEST_BYTES_PER_SECOND
            num_bytes += len(piece)
            if num_bytes > most_bytes:
                raise _too_large(most_bytes)
            num_values += num_value_signs(piece)
            if num_values > MOST_VALUES:
                raise BodyTooLarge(f"the body has more than {MOST_VALUES} of the signs that begin a JSON value")
            share.came(num_bytes)
            pieces.append(piece)
    except StopAsyncIteration:
        return Body(b"".join(pieces), num_values)
    except ClientDisconnect:
        raise Cancelled("the client left") from None
    except TimeoutError:
        raise InvalidRequest(f"the body came too slowly; pauses may take {pause_seconds:g} seconds") from None


class _Share:
    """What a body takes of the budget.

    One that would not fit now is turned away unread. Then it holds what has come and a little ahead, never all that
    it promises: a few connections that promise much and send nothing would shut everybody else out.
    """

    def __init__(self, length: int, holding: Holding) -> None:
        """length: as declared, 0 where it is not. Raises Overloaded."""
        holding.check(length)
        self._length = length
        self._holding = holding
        self._held = min(length, _AHEAD_BYTES)
        holding.take(self._held)

    def came(self, num_bytes: int) -> None:
        """So many so far. Raises Overloaded."""
        if num_bytes > self._held:
            held = max(num_bytes, min(num_bytes + _AHEAD_BYTES, self._length))
            self._holding.take(held - self._held)
            self._held = held


def num_value_signs(piece: bytes) -> int:
    """How many of the signs that begin a JSON value are in it.

    Looking for the next one goes over base64 five times as fast as counting, which wins only where there are many.
    """
    total = 0
    for sign in _BEFORE_VALUES:
        found = num_found(piece, sign, _FEW_SIGNS)
        total += found if found < _FEW_SIGNS else piece.count(sign)
    return total


def num_found(piece: bytes, sign: bytes, most: int) -> int:
    """How often the sign is in it; nothing is looked for behind `most` of them."""
    at, found = -1, 0
    while found < most and (at := piece.find(sign, at + 1)) >= 0:
        found += 1
    return found


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of work for a client whose body has been read; ends the work and raises Cancelled when it leaves."""
    task = asyncio.current_task()
    assert task is not None
    is_over, others = False, task.cancelling()
    gone = asyncio.ensure_future(_client_gone(receive))

    def end(_: object) -> None:
        if not is_over:
            task.cancel()

    gone.add_done_callback(end)
    try:
        return await work  # in this task: one more for each request, and waking it, costs more than the rest of this
    except asyncio.CancelledError:
        if gone.done() and task.uncancel() <= others:
            raise Cancelled("the client left") from None
        raise
    finally:
        is_over = True
        gone.cancel()
        await asyncio.wait({gone})


async def _client_gone(receive: Receive) -> None:
    """Returns when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(most_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body has more than {most_bytes} bytes")
