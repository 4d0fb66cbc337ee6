"""From a request's tokens to its client's socket, without a task in between."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.router.requests import text_request, token, tokens_of
from tests.router.serving import until
from triptych.errors import WorkerLost
from triptych.journey import Token
from triptych.router.api.stream import TokenPump
from triptych.router.pipeline.request import Request
from triptych.stages import Stage

pytestmark = pytest.mark.anyio


class Client:
    """What a client has got; reads no further than it wants to."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.got = b""
        self.room = room  # pieces until it stops reading
        self.reads = asyncio.Event()

    def write(self, piece: bytes) -> bool:
        assert piece
        self.got += piece
        self.room -= 1
        return self.room > 0

    async def drained(self) -> None:
        await self.reads.wait()
        self.reads.clear()


def frames(tokens: Sequence[Token]) -> bytes:
    return "".join(f"{each.id} " for each in tokens).encode()


def pump_of(request: Request, client: Client, patience_seconds: float = 5.0) -> TokenPump:
    return TokenPump(request, client, frames, patience_seconds)  # type: ignore[arg-type]


def decoding() -> Request:
    request = text_request(max_tokens=100)
    request.stage = Stage.DECODING
    return request


async def started(request: Request, client: Client, first: Sequence[Token] = (), **limits: float) -> asyncio.Task[None]:
    task = asyncio.create_task(pump_of(request, client, **limits).run(first))
    await asyncio.sleep(0)
    return task


async def test_a_token_is_written_before_the_call_that_brings_it_returns() -> None:
    request, client = decoding(), Client()
    request.deliver([token(7, 0)])
    task = await started(request, client, request.take())
    request.deliver([token(8, 1)])
    assert client.got == b"7 8 "  # no other task has run meanwhile
    request.deliver([token(9, 2, finish="length")])
    request.end(Stage.FINISHED)
    await asyncio.wait_for(task, 5)
    assert client.got == b"7 8 9 "


async def test_what_came_before_anyone_listened_is_not_lost() -> None:
    request, client = decoding(), Client()
    first, *others = tokens_of([1, 2, 3])
    request.deliver([first])
    taken = request.take()
    request.deliver(others)
    request.end(Stage.FINISHED)
    await asyncio.wait_for(pump_of(request, client).run(taken), 5)
    assert client.got == b"1 2 3 "


async def test_an_error_comes_behind_the_last_tokens() -> None:
    request, client = decoding(), Client()
    task = await started(request, client)
    request.deliver([token(5, 0)])
    request.end(Stage.FAILED, WorkerLost("gone"))
    with pytest.raises(WorkerLost):
        await asyncio.wait_for(task, 5)
    assert client.got == b"5 "


async def test_tokens_wait_for_a_client_that_does_not_read_and_go_out_together() -> None:
    request, client = decoding(), Client(room=2)
    task = await started(request, client)
    for position in range(6):
        request.deliver([token(position, position)])
    assert client.got == b"0 1 "
    client.room = 100
    client.reads.set()
    await until(lambda: client.got == b"0 1 2 3 4 5 ")
    request.end(Stage.FINISHED)
    await asyncio.wait_for(task, 5)


async def test_the_end_of_a_request_waits_for_a_client_that_does_not_read() -> None:
    request, client = decoding(), Client(room=1)
    task = await started(request, client)
    request.deliver([token(1, 0)])
    request.deliver([token(2, 1)])
    request.end(Stage.FINISHED)
    await asyncio.sleep(0.02)
    assert not task.done()
    client.room = 100
    client.reads.set()
    await asyncio.wait_for(task, 5)
    assert client.got == b"1 2 "


async def test_a_client_that_never_reads_is_given_up() -> None:
    request, client = decoding(), Client(room=1)
    task = await started(request, client, patience_seconds=0.05)
    request.deliver([token(1, 0)])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(task, 5)
    request.deliver([token(2, 1)])  # nobody listens any more, and whoever delivers does not notice
    assert client.got == b"1 "


async def test_a_bug_in_making_frames_ends_the_stream_and_not_who_delivers() -> None:
    request, client = decoding(), Client()

    def broken(tokens: Sequence[Token]) -> bytes:
        return b"" if not tokens else bytes(1 // 0)

    task = asyncio.create_task(TokenPump(request, client, broken, 5.0).run(()))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    request.deliver([token(1, 0)])
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(task, 5)


async def test_a_stream_that_is_cancelled_hears_no_more() -> None:
    request, client = decoding(), Client()
    task = await started(request, client)
    task.cancel()
    await asyncio.wait({task})
    request.deliver([token(1, 0)])
    request.end(Stage.CANCELLED)
    assert client.got == b""
