"""Clients that leave, or read no more: nothing of theirs stays anywhere."""

import asyncio
import gc
import json
import socket
import time
import tracemalloc

import pytest

from tests.router.serving import PICTURES, TEXT, Served, chat_body, image, picture, serving, tiers, until
from triptych.models.card import ModelCard
from triptych.router.api.schema import Chat
from triptych.router.observe.timeline import Timeline
from triptych.router.router import close_all

pytestmark = pytest.mark.anyio


def log_of(served: Served) -> list[str]:
    return [entry for worker in served.workers for entry in worker.log]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stage", ["reserve", "prefill", "encode", "decode"])
async def test_a_client_that_leaves_is_forgotten_everywhere(card: ModelCard, stage: str, stream: bool) -> None:
    encoder, prefill, decode = workers = tiers(card, "e", "p", "d")
    held = {"reserve": decode, "prefill": prefill, "encode": encoder}.get(stage)
    decode.token_pause_seconds = 0.01
    async with serving(card, workers) as served:
        if held is not None:
            held.gate.clear()
        asked = asyncio.create_task(served.chat([picture(), TEXT], max_tokens=1000, stream=stream))
        await until(lambda: any(entry.startswith(stage) for entry in log_of(served)))
        began = time.monotonic()
        asked.cancel()
        await asyncio.wait({asked})
        told = {"reserve": [decode], "prefill": [prefill, decode]}.get(stage, workers)
        await until(lambda: all("cancel" in worker.log for worker in told), seconds=2)
        await until(lambda: decode.reserved == 0, seconds=2)
        assert time.monotonic() - began < 2
        await until(lambda: served.router.budget.held_bytes == 0)
        await until(lambda: len(served.router.serving.pipeline._claims) == 0)


async def test_a_client_that_stops_reading_is_let_go(card: ModelCard) -> None:
    (worker,) = tiers(card, "epd")
    async with serving(card, [worker], stage_timeout_seconds=0.3) as served:
        body = json.dumps(chat_body(stream=True, max_tokens=8000, n=8, return_token_ids=True)).encode()
        host, port = served.base_url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            await until(lambda: "decode after 1" in worker.log)
            await until(lambda: served.router.running == 0)
        await until(lambda: worker.reserved == 0)


async def test_runs_that_are_left_while_they_close_are_all_accounted_for(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd")) as served:
        chat = Chat.parse(json.dumps(chat_body([picture(), TEXT], max_tokens=100)).encode())
        runs = [await served.router.begin(chat, Timeline()) for _ in range(3)]
        assert served.router.budget.held_bytes > 0
        closing = asyncio.create_task(close_all(runs))
        await asyncio.sleep(0)
        closing.cancel()  # as where the client leaves in this very turn
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert (served.router.running, served.router.budget.held_bytes, served.router.serving.requests) == (0, 0, 0)


async def test_an_answer_under_way_holds_what_the_budget_counts_and_no_body(card: ModelCard) -> None:
    (worker,) = tiers(card, "epd")
    worker.token_pause_seconds = 0.05
    large = image((PICTURES / "red-circle.png").read_bytes() + bytes(6 << 20))
    body = json.dumps(chat_body([large, TEXT], max_tokens=400, user="x" * (8 << 20))).encode()
    async with serving(card, [worker]) as served:
        tracemalloc.start()
        try:
            asked = asyncio.create_task(served.client.post("/v1/chat/completions", content=body))
            await until(lambda: "decode after 1" in worker.log)
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < served.router.budget.held_bytes + (2 << 20)
        finally:
            tracemalloc.stop()
        asked.cancel()
        await asyncio.wait({asked})
