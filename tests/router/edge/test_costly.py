"""Requests made to cost far more than they weigh: refused, while everybody else is answered."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.router.liveness import LONGEST_STANDSTILL_SECONDS, lively
from tests.router.serving import Served, chat_body, serving, tiers
from triptych.models.card import ModelCard
from triptych.router.api.messages import Message
from triptych.router.edge.connection import Connection

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
ROOM = 60 << 20  # bytes, a little under the default max_body_bytes
HEAD = b'{"model":"tiny_vl","max_tokens":1,'
HELLO = b'"messages":[{"role":"user","content":"hi"}]'
IMAGE = b'{"type":"image_url","image_url":{"url":"x"}}'


def many(value: bytes, count: int) -> bytes:
    return b",".join([value] * count)


def keyed(value: bytes, room: int = ROOM) -> bytes:
    return many(b'"0":' + value, room // (len(value) + 5))


def turns(part: bytes, parts: int, messages: int) -> bytes:
    return b'"messages":[' + many(b'{"role":"user","content":[' + many(part, parts) + b"]}", messages) + b"]}"


SHAPES = {
    "stops of numbers": lambda: HEAD + HELLO + b',"stop":[' + many(b"0", ROOM // 2) + b"]}",
    "fewer stops of numbers": lambda: HEAD + HELLO + b',"stop":[' + many(b"0", 500_000) + b"]}",
    "stops": lambda: HEAD + HELLO + b',"stop":[' + many(b'"a"', ROOM // 4) + b"]}",
    "biases of lists": lambda: HEAD + HELLO + b',"logit_bias":{' + keyed(b"[]") + b"}}",
    "fewer biases of lists": lambda: HEAD + HELLO + b',"logit_bias":{' + many(b'"0":0', 100_000) + b',"a":[]' + b"}}",
    "distinct biases of texts": lambda: (
        HEAD + HELLO + b',"logit_bias":{' + b",".join(b'"%d":"x"' % index for index in range(400_000)) + b"}}"
    ),
    "messages that are lists": lambda: HEAD + b'"messages":[' + many(b"[]", ROOM // 3) + b"]}",
    "nested lists": lambda: HEAD + HELLO + b',"x":[' + many(b"[" * 100 + b"]" * 100, ROOM // 201) + b"]}",
    "nested objects": lambda: HEAD + HELLO + b',"x":[' + many(b'{"":' * 100 + b"0" + b"}" * 100, ROOM // 502) + b"]}",
    "unknown keys": lambda: HEAD + HELLO + b"," + keyed(b"0") + b"}",
    "tools": lambda: HEAD + HELLO + b',"tools":[' + many(b"{}", 250_000) + b"]}",
    "empty parts": lambda: HEAD + turns(b'""', 4096, 3000),
    "fewer empty parts": lambda: HEAD + turns(b'""', 4096, 100),
    "images": lambda: HEAD + turns(IMAGE, 4096, 20),
    "many images": lambda: HEAD + turns(IMAGE, 4096, 300),
    "one long text": lambda: HEAD + b'"messages":[{"role":"user","content":"' + b"a" * ROOM + b'"}]}',
    "one long text of escapes": lambda: (
        HEAD + b'"messages":[{"role":"user","content":"' + b"\\u00e9" * (ROOM // 6) + b'"}]}'
    ),
    "a long number": lambda: HEAD + HELLO + b',"seed":' + b"9" * ROOM + b"}",
}


def distinct(value: bytes, count: int = 400_000) -> bytes:
    return b"{" + b",".join(b'"%d":%s' % (index, value) for index in range(count)) + b"}"


ELSEWHERE = {
    "/detokenize": lambda: b'{"tokens":[' + many(b'"a"', 520_000) + b"]}",
    "/v1/completions": lambda: b'{"model":"tiny_vl","prompt":"hi","logit_bias":' + distinct(b'"x"') + b"}",
    "/v1/responses": lambda: b'{"model":"tiny_vl","input":"hi","metadata":' + distinct(b"0") + b"}",
    "/v1/messages": lambda: HEAD + HELLO + b',"stop_sequences":[' + many(b"0", 500_000) + b"]}",
}


@pytest.mark.parametrize("shape", [*SHAPES, *ELSEWHERE])
async def test_a_costly_body_is_refused_while_others_are_answered(card: ModelCard, shape: str) -> None:
    body = (SHAPES | ELSEWHERE)[shape]()
    async with serving(card, tiers(card, "epd")) as served:
        async with lively():
            refusal = asyncio.create_task(_post(served, shape if shape in ELSEWHERE else CHAT, body))
            worst = await _slowest_probe(served, refusal)
        status, answer = await refusal
    assert status in (400, 413), answer
    assert worst < LONGEST_STANDSTILL_SECONDS
    assert served.router.budget.held_bytes == 0


async def test_the_most_parts_that_are_allowed_hold_nobody_up(card: ModelCard, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[threading.Thread] = set()

    async with serving(card, tiers(card, "epd")) as served:
        original = served.router.prompts.runs

        def runs(messages: Sequence[Message]) -> list[tuple[int, ...]]:
            threads.add(threading.current_thread())
            return original(messages)

        monkeypatch.setattr(served.router.prompts, "runs", runs)
        async with lively():
            answer = asyncio.create_task(_post(served, CHAT, HEAD + turns(b'""', 4096, 4)))
            await _slowest_probe(served, answer)
        assert (await answer)[0] == 200
    assert threads
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("text", ["a" * ROOM, "wxyz " * 3400])  # the second may be short enough until it is tokenized
async def test_a_text_no_prompt_could_hold_gets_no_ids(card: ModelCard, text: str) -> None:
    async with serving(card) as served:
        async with lively():
            response = await served.client.post("/tokenize", content=b'{"prompt":"' + text.encode() + b'"}')
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")


async def test_tokenizing_for_strangers_leaves_the_threads_of_others_alone(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd")) as served:
        busy = served.router.threads.texts.submit(time.sleep, 1.0)
        waiting = [asyncio.create_task(served.client.post("/tokenize", json={"prompt": "hello"})) for _ in range(50)]
        await asyncio.sleep(0.05)
        assert (await served.chat("b " * 1000, max_tokens=1)).status_code == 200  # long enough for a thread
        await asyncio.wait_for(asyncio.to_thread(int), 0.5)
        assert not busy.done()
        assert {response.status_code for response in await asyncio.gather(*waiting)} == {200}


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"])
async def test_a_head_that_does_not_end_ends_the_connection(
    card: ModelCard, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "head_seconds", 0.3)
    async with serving(card) as served:
        for before in (b"", b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"):
            if before and not sent:
                continue  # an idle connection, which is kept for longer
            reader, writer = await asyncio.open_connection("127.0.0.1", _port(served))
            if before:
                writer.write(before)
                assert b"ok" in await reader.readuntil(b"}")
            writer.write(sent)
            assert await asyncio.wait_for(_end(reader, writer), 3)
            writer.close()


async def test_a_request_in_time_and_its_slow_answer_are_left_alone(
    card: ModelCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "head_seconds", 0.2)
    async with serving(card, tiers(card, "epd")) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", _port(served))
        for _ in range(2):  # idle for longer than a head may take
            writer.write(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"ok" in await asyncio.wait_for(reader.readuntil(b"}"), 3)
            await asyncio.sleep(0.4)
        writer.close()


async def test_a_body_that_trickles_is_let_go(card: ModelCard) -> None:
    async with serving(card, stage_timeout_seconds=0.5) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", _port(served))
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n".encode())
        began = time.monotonic()
        answer = asyncio.create_task(reader.read(1000))
        while not answer.done() and time.monotonic() - began < 5:
            writer.write(b" ")  # each byte in time, all of them not
            await asyncio.sleep(0.1)
        assert (await answer).startswith(b"HTTP/1.1 400")
        assert time.monotonic() - began < 2
        writer.close()


async def test_images_over_the_limit_are_refused_over_http(card: ModelCard) -> None:
    async with serving(card, max_images_per_prompt=2) as served:
        parts: list[Any] = [{"type": "image_url", "image_url": {"url": "x"}}] * 3
        response = await served.client.post(CHAT, json=chat_body(parts))
        assert response.status_code == 400
        assert "more than 2 images" in response.json()["error"]["message"]


async def _post(served: Served, path: str, body: bytes) -> tuple[int, str]:
    """Status and answer."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1 << 18):
            yield body[start : start + (1 << 18)]

    response = await served.client.post(path, content=pieces(), headers={"content-length": str(len(body))})
    return response.status_code, response.text


async def _slowest_probe(served: Served, until_done: asyncio.Task[Any]) -> float:
    """Seconds that /live took at worst meanwhile."""
    worst = 0.0
    while not until_done.done():
        began = time.monotonic()
        assert (await served.client.get("/live")).status_code == 200
        worst = max(worst, time.monotonic() - began)
        await asyncio.sleep(0.02)
    return worst


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """True at the end of the connection, while a byte of a header comes every now and then."""
    reading = asyncio.create_task(reader.read())
    while not reading.done():
        writer.write(b"a")
        await asyncio.sleep(0.05)
    return reading.exception() is not None or reading.result() == b""


def _port(served: Served) -> int:
    return int(served.base_url.rpartition(":")[2])
