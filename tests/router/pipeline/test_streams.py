"""What a stream of an answer is made of, and how it ends."""

import json

import pytest

from tests.router.serving import chunks, serving, tiers, until
from triptych.errors import LayoutMismatch
from triptych.models.card import ModelCard

pytestmark = pytest.mark.anyio


async def test_a_stream_has_role_text_finish_usage_and_done(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd")) as served:
        whole = (await served.chat(max_tokens=6)).json()
        frames = await served.frames(max_tokens=6, stream_options={"include_usage": True})
        assert frames[-1] == "data: [DONE]"
        told = chunks(frames)
        assert told[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(choice["delta"].get("content", "") for chunk in told for choice in chunk["choices"])
        assert text == whole["choices"][0]["message"]["content"]
        assert told[-2]["choices"][0]["finish_reason"] == "length"
        assert told[-1]["choices"] == []
        assert told[-1]["usage"] == whole["usage"]
        assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in told}) == 1


async def test_continuous_usage_never_falls(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd")) as served:
        options = {"include_usage": True, "continuous_usage_stats": True}
        told = chunks(await served.frames(max_tokens=6, stream_options=options))
        counts = [chunk["usage"]["completion_tokens"] for chunk in told]
        assert counts == sorted(counts)
        assert counts[-1] == 6


async def test_a_failure_in_mid_stream_is_an_error_event_and_no_done(card: ModelCard) -> None:
    worker, *_ = tiers(card, "epd")
    worker.fail_decode_at = {3: LayoutMismatch("digests differ")}
    async with serving(card, [worker]) as served:
        frames = await served.frames(max_tokens=9)
        error = json.loads(frames[-1].removeprefix("event: error\ndata: "))["error"]
        assert error["code"] == "layout_mismatch"
        assert "digests" not in error["message"]  # which are the cluster's own business
        assert not any("[DONE]" in frame for frame in frames)
        assert not any(choice["finish_reason"] for chunk in chunks(frames) for choice in chunk["choices"])


async def test_an_error_before_the_first_token_has_a_status_also_in_a_stream(card: ModelCard) -> None:
    prefill, *rest = tiers(card, "p", "e", "d")
    prefill.fail_prefill = [LayoutMismatch("digests differ")]
    async with serving(card, [prefill, *rest]) as served:
        response = await served.chat(stream=True)
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "layout_mismatch"


async def test_a_stop_string_ends_the_answer_and_the_worker_is_told(card: ModelCard) -> None:
    (worker,) = tiers(card, "epd")
    worker.token_pause_seconds = 0.01
    async with serving(card, [worker]) as served:
        text = (await served.chat(max_tokens=12)).json()["choices"][0]["message"]["content"]
        stop = text[5:7]
        answer = (await served.chat(max_tokens=2000, stop=stop)).json()["choices"][0]
        assert answer["finish_reason"] == "stop"
        assert answer["message"]["content"] == text[: text.index(stop)]
        await until(lambda: worker.reserved == 0 and "cancel" in worker.log)
