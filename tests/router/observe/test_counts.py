"""What is observed of requests is what their clients see, whichever way they ask and however it ends."""

import asyncio
import json

import httpx
import pytest

from tests.metrics.test_books import samples
from tests.router.serving import Served, chat_body, serving, tiers, until
from triptych.errors import WorkerLost
from triptych.models.card import ModelCard

pytestmark = pytest.mark.anyio

PAUSE = 0.05
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def counted(served: Served) -> dict[str, float]:
    return {name.removeprefix("triptych:"): value for name, value in samples(served.router.expose_metrics()).items()}


@pytest.mark.parametrize("streamed", [False, True])
async def test_every_gap_between_two_tokens_of_a_choice_is_observed_and_none_between_choices(
    card: ModelCard, streamed: bool
) -> None:
    workers = tiers(card, "epd")
    workers[0].token_pause_seconds = PAUSE
    async with serving(card, workers) as served:
        assert (await served.chat(n=3, max_tokens=5, temperature=1, stream=streamed)).status_code == 200
        await until(lambda: served.router.running == 0)
        found = counted(served)
    assert found["generation_tokens_total{}"] == 15
    assert found["time_to_first_token_seconds_count{}"] == 1
    assert found["inter_token_latency_seconds_count{}"] == 3 * 4
    assert found["inter_token_latency_seconds_sum{}"] >= 3 * 4 * PAUSE


async def leaves_behind_some_tokens(served: Served, path: str, body: dict[str, object]) -> None:
    async with served.client.stream("POST", path, json={**body, "stream": True, "max_tokens": 1000}) as answer:
        await anext(answer.aiter_text())


async def test_a_client_that_leaves_is_counted_before_and_behind_its_first_token(card: ModelCard) -> None:
    workers = tiers(card, "epd")
    workers[0].token_pause_seconds = PAUSE
    async with serving(card, workers) as served:
        for path, body in ((CHAT, chat_body()), (COMPLETIONS, {"model": "tiny_vl", "prompt": ["a", "b"]})):
            await leaves_behind_some_tokens(served, path, body)
            await until(lambda: served.router.running == 0)
        found = counted(served)
        assert found["request_errors_total{error=Cancelled}"] == 2
        workers[0].gate.clear()
        with pytest.raises(httpx.TimeoutException):
            await served.client.post(CHAT, json=chat_body(), timeout=0.2)
        await until(lambda: served.router.running == 0)
        assert counted(served)["request_errors_total{error=Cancelled}"] == 3


async def test_a_stream_that_fails_is_counted_once(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd")) as served:
        for body in ({"prompt": "a"}, {"prompt": ["a", "b"]}):
            served.workers[0].fail_decode_at = {position: WorkerLost("as told") for position in (1, 2, 3, 4)}
            asked = {"model": "tiny_vl", "max_tokens": 9, "n": 2, "temperature": 1, "stream": True, **body}
            assert "error" in (await served.client.post(COMPLETIONS, json=asked)).text
        await until(lambda: served.router.running == 0)
        assert counted(served)["request_errors_total{error=WorkerLost}"] == 2


async def test_each_prompt_of_a_stream_tells_when_its_first_token_went_out(card: ModelCard) -> None:
    asked = {"model": "tiny_vl", "prompt": ["a", "b"], "max_tokens": 2, "stream": True}
    async with serving(card, tiers(card, "epd")) as served:
        await served.client.post(COMPLETIONS, json=asked, headers={"x-request-id": "both"})
        await until(lambda: served.router.running == 0)
        assert "respond" in (await served.client.get("/v1/requests/both/timeline")).json()["stages"]


async def test_all_prompts_of_a_request_are_timed_from_its_arrival(card: ModelCard) -> None:
    late = 0.3
    body = json.dumps({"model": "tiny_vl", "prompt": ["a", "b", "c"], "max_tokens": 2}).encode()
    async with serving(card, tiers(card, "epd")) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.base_url.rpartition(":")[2]))
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode())
        await asyncio.sleep(late)  # as a large body on a slow line does
        writer.write(body)
        assert b" 200 " in await reader.readline()
        await reader.read()
        writer.close()
        await until(lambda: served.router.running == 0)
        found = counted(served)
    assert found["time_to_first_token_seconds_count{}"] == 3
    assert found["time_to_first_token_seconds_sum{}"] >= 3 * late * 0.9


async def test_of_two_traces_none_is_taken_on(card: ModelCard) -> None:
    traces = [("traceparent", f"00-{digit * 32}-{digit * 16}-01") for digit in "ab"]
    async with serving(card, tiers(card, "epd")) as served:
        await served.client.post(CHAT, json=chat_body(max_tokens=1), headers=traces)
        assert served.workers[0].traceparents == {""}
        await served.client.post(CHAT, json=chat_body(max_tokens=1), headers=traces[:1])
        assert len(served.workers[0].traceparents) == 2
