"""Reading what a client sends, and noticing when it leaves."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from triptych.errors import BodyTooLarge, Cancelled, InvalidRequest
from triptych.router.budget import Holding

Result = TypeVar("Result")

# Every value of JSON but the first stands behind one of these, of which base64 has none: images may be as large as
# they are, while what a parser makes of the rest stays within tens of megabytes and a fraction of a second.
_BEFORE_VALUES = (b",", b"[", b"{")
MOST_VALUES = 1 << 19
SLOWEST_BYTES_PER_SECOND = 16 << 10


async def read_body(http: Request, most_bytes: int, pause_seconds: float, holding: Holding) -> bytes:
    """The whole body, meant to be JSON, counted in the holding while it comes.

    Raises BodyTooLarge, before reading where the length is declared; InvalidRequest for a client that pauses too
    long, or sends next to nothing without ever pausing.
    """
    declared = http.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most_bytes:
        raise _too_large(most_bytes)
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
            num_values += sum(map(piece.count, _BEFORE_VALUES))
            if num_values > MOST_VALUES:
                raise BodyTooLarge(f"the body has more than {MOST_VALUES} of the signs that begin a JSON value")
            holding.take(len(piece))
            pieces.append(piece)
    except StopAsyncIteration:
        return b"".join(pieces)
    except ClientDisconnect:
        raise Cancelled("the client left") from None
    except TimeoutError:
        raise InvalidRequest(f"the body came too slowly; pauses may take {pause_seconds:g} seconds") from None


async def unless_gone(http: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of work for a client whose body has been read; ends the work and raises Cancelled when it leaves."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(client_gone(http.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Cancelled("the client left")
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.wait({task, gone})


async def client_gone(receive: Receive) -> None:
    """Returns when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(most_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body has more than {most_bytes} bytes")
