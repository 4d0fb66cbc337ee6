"""Bodies and streams on the ways that go past h11 and ASGI: the same bytes, whatever the pieces."""

import asyncio
import hashlib
import json
import random
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from tests.metrics.test_books import samples
from tests.router.serving import serving, until
from triptych.models.card import ModelCard
from triptych.router.edge.connection import MOST_HEADERS, Connection, chunk_way

pytestmark = pytest.mark.anyio
PIECES = [b"a", b"\r\n", bytes(range(256)) * 40, b"0\r\n\r\n"]


class App:
    """Answers with the digest of the body, past ASGI where it can."""

    def __init__(self) -> None:
        self.num_direct = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            assert message["type"] == "http.request"
            body, more = body + message["body"], message["more_body"]
        answer = hashlib.sha256(body).hexdigest().encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        way = chunk_way(scope)
        for piece in PIECES:
            if way is not None:
                self.num_direct += 1
                way.write(piece)
            else:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": answer, "more_body": False})


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[int]:
    config = uvicorn.Config(app, http=Connection, log_config=None, lifespan="off", ws="none", port=0)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started or task.done())
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


def head(length: int, more: str = "", version: str = "1.1") -> bytes:
    return f"POST /x HTTP/{version}\r\nhost: x\r\ncontent-length: {length}\r\n{more}\r\n".encode()


async def chunked_answer(reader: asyncio.StreamReader) -> bytes:
    """The body of one answer, put together from its chunks."""
    first = await reader.readuntil(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in first.lower(), first
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        assert await reader.readexactly(2) == b"\r\n"
    assert await reader.readexactly(2) == b"\r\n"
    return body


def expected(body: bytes) -> bytes:
    return b"".join(PIECES) + hashlib.sha256(body).hexdigest().encode()


@pytest.mark.parametrize("seed", range(6))
async def test_bodies_arrive_whole_however_they_are_cut(seed: int) -> None:
    rng, app = random.Random(seed), App()
    bodies = [rng.randbytes(rng.choice((0, 1, 70_000, 400_000))) for _ in range(4)]
    stream = b"".join(head(len(body)) + body for body in bodies)
    async with listening(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def send() -> None:
            at = 0
            while at < len(stream):
                size = rng.choice((1, 100, 5_000, 100_000))
                writer.write(stream[at : at + size])
                at += size
                await asyncio.sleep(rng.choice((0, 0.001)))

        sending = asyncio.create_task(send())
        async with asyncio.timeout(20):
            assert [await chunked_answer(reader) for _ in bodies] == [expected(body) for body in bodies]
        await sending
        writer.close()
    assert app.num_direct == len(PIECES) * len(bodies)


async def test_the_middle_of_a_body_never_enters_h11(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where h11 has changed inside, so that the short way is no longer taken."""
    seen: list[int] = []
    original = Connection.handle_events

    def handle_events(self: Connection) -> None:
        seen.append(len(self.conn.trailing_data[0]))
        original(self)

    monkeypatch.setattr(Connection, "handle_events", handle_events)
    body = random.Random(1).randbytes(1 << 20)
    async with listening(App()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head(len(body)))
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.write(body)
        assert await chunked_answer(reader) == expected(body)
        writer.close()
    assert max(seen[1:], default=0) == 0


async def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    app = App()
    async with listening(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head(5, version="1.0") + b"hello")
        answer = await reader.read()
        writer.close()
    assert answer.partition(b"\r\n\r\n")[2] == expected(b"hello")
    assert app.num_direct == 0


async def test_a_client_that_waits_for_leave_to_send_gets_it() -> None:
    body = bytes(300_000)
    async with listening(App()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head(len(body), "expect: 100-continue\r\n"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        writer.write(body)
        assert await chunked_answer(reader) == expected(body)
        writer.close()


async def test_a_client_that_does_not_read_is_noticed() -> None:
    paused = asyncio.Event()

    async def flood(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        way = chunk_way(scope)
        assert way is not None
        while way.write(bytes(1 << 16)):
            await asyncio.sleep(0)
        paused.set()
        await way.drained()
        assert way.write(b"end")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with listening(flood) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
        writer.write(head(0))
        async with asyncio.timeout(20):
            await paused.wait()
            assert (await chunked_answer(reader)).endswith(b"\0end")
        writer.close()


async def test_what_is_written_to_a_client_that_has_left_goes_nowhere() -> None:
    outcome: asyncio.Queue[bool] = asyncio.Queue()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] != "http.disconnect":
            pass
        way = chunk_way(scope)
        assert way is not None
        outcome.put_nowait(way.write(b"x"))

    async with listening(late) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head(0))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        assert await asyncio.wait_for(outcome.get(), 5)


def test_another_server_has_no_such_way() -> None:
    assert chunk_way({"type": "http"}) is None
    assert chunk_way({"type": "http", "extensions": {"triptych.chunks": object()}}) is None


CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


async def asked(port: int, *pieces: bytes) -> bytes:
    """All that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return answer


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def nested_error(answer: bytes) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nx-request-id: " in head
    assert b"\r\nconnection: close" in head.lower()
    error: dict[str, Any] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"hello?\r\n\r\n", 400, "malformed_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "malformed_request"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "malformed_request"),  # no host
        (b"GET / HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n", 400, "malformed_request"),
        (CHAT + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello", 400, "malformed_request"),
        (CHAT + b"content-length: -1\r\n\r\n", 400, "malformed_request"),
        (CHAT + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400, "malformed_request"),
        (CHAT + b"transfer-encoding: gzip\r\n\r\n", 501, "malformed_request"),
        (CHAT + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400, "malformed_request"),
        (CHAT + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n", 400, "malformed_request"),
        (CHAT + b"transfer-encoding: chunked\r\n\r\n2\r\n{ \r\n1" + b"0" * 16 + b"\r\n", 400, "malformed_request"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * MOST_HEADERS + b"\r\n", 431, "headers_too_large"),
    ],
)
async def test_what_is_no_http_gets_a_nested_error_and_the_connection_ends(
    card: ModelCard, sent: bytes, status: int, code: str
) -> None:
    async with serving(card) as served:
        answer = await asked(port_of(served.base_url), sent)
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        assert nested_error(answer)["code"] == code
        assert (await served.client.get("/live")).status_code == 200
        reason = "head" if status == 431 else "malformed"
        assert samples(served.router.expose_metrics())[f"triptych:rejected_requests_total{{reason={reason}}}"] == 1


async def test_a_client_that_uploads_far_too_much_reads_why_and_no_reset(card: ModelCard) -> None:
    async with serving(card, max_body_bytes=1000) as served:
        sent = bytes(1 << 20)
        answer = await asked(*(port_of(served.base_url), CHAT + b"content-length: 1000000000\r\n\r\n", *[sent] * 16))
        assert answer.startswith(b"HTTP/1.1 413")
        assert nested_error(answer)["code"] == "request_too_large"


async def test_a_client_that_never_stops_uploading_is_cut_off(card: ModelCard) -> None:
    async with serving(card, max_body_bytes=1000) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(served.base_url))
        writer.write(CHAT + b"content-length: 1000000000\r\n\r\n")

        async def upload() -> None:
            while True:
                writer.write(bytes(1 << 20))
                await writer.drain()

        with pytest.raises(OSError):
            await asyncio.wait_for(upload(), 15)
        del reader
        writer.close()


async def test_a_refused_client_that_waits_for_leave_to_send_need_not_send(card: ModelCard) -> None:
    async with serving(card, max_body_bytes=1000) as served:
        answer = await asked(port_of(served.base_url), CHAT + b"expect: 100-continue\r\ncontent-length: 100000\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413")


async def test_a_connection_goes_on_after_an_error_whose_body_was_small(card: ModelCard) -> None:
    async with serving(card, api_key="k") as served:
        refused = CHAT + b"content-length: 5\r\n\r\nhello"
        last = b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        answer = await asked(port_of(served.base_url), refused + refused + last)  # all at once: pipelined
        assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"401", b"401", b"200"]


async def test_beyond_the_most_connections_requests_are_refused_and_probes_are_not(card: ModelCard) -> None:
    async with serving(card, max_connections=4) as served:
        port = port_of(served.base_url)
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        answer = await asked(port, CHAT + b"content-length: 2\r\n\r\n{}")
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: " in answer
        assert nested_error(answer)["code"] == "too_many_connections"
        probe = b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        assert (await asked(port, probe)).startswith(b"HTTP/1.1 200")
        more = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        refused = "triptych:rejected_requests_total{reason=connections}"
        assert samples(served.router.expose_metrics())[refused] == 1
        assert (await asked(port, probe)).startswith(b"HTTP/1.1 503")  # twice as many: nobody is listened to
        found = samples(served.router.expose_metrics())
        assert (found[refused], found["triptych:request_errors_total{error=TooManyConnections}"]) == (2, 2)
        for _, writer in idle + more:
            writer.close()

        async def answers() -> bool:
            return (await asked(port, CHAT + b"connection: close\r\ncontent-length: 2\r\n\r\n{}")).startswith(
                b"HTTP/1.1 400"
            )

        async with asyncio.timeout(5):
            while not await answers():
                await asyncio.sleep(0.01)


async def test_a_client_that_resets_instead_of_leaving_politely_costs_nothing(card: ModelCard) -> None:
    async with serving(card) as served:
        for _ in range(20):
            client = socket.create_connection(("127.0.0.1", port_of(served.base_url)))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            client.sendall(CHAT + b"content-length: 100\r\n\r\nabc")
            client.close()
        await until(lambda: served.router.budget.held_bytes == 0)
        assert (await served.client.get("/live")).status_code == 200
