"""The journey over HTTP, with workers that speak the protocol and compute nothing."""

import asyncio
import json
import random
import socket
import time

import pytest

from tests.router.loopback_prefill import token_id
from tests.router.serving import PICTURES, Served, chat_body, chunks, image, picture, serving, tiers, until
from triptych.errors import ClaimExpired, InvalidMedia, LayoutMismatch, TransferFailed, WorkerLost
from triptych.models.card import ModelCard

pytestmark = pytest.mark.anyio
TEXT = {"type": "text", "text": "what?"}


def expected(count: int, choice: int = 0) -> list[int]:
    return [token_id(choice, position) for position in range(count)]


def log_of(served: Served) -> list[str]:
    return [entry for worker in served.workers for entry in worker.log]


@pytest.mark.parametrize("topology", [("e", "p", "d"), ("ep", "d"), ("e", "pd"), ("epd",)])
async def test_text_and_images_come_back_as_tokens_in_every_topology(
    card: ModelCard, topology: tuple[str, ...]
) -> None:
    async with serving(card, tiers(card, *topology)) as served:
        assert await served.ids("hello", max_tokens=5) == expected(5)
        assert await served.ids([picture(), TEXT, picture("sign-tea.png")], max_tokens=5) == expected(5)


async def test_blocks_are_reserved_before_prefill_and_prefill_accepts_before_encoding(card: ModelCard) -> None:
    (worker,) = tiers(card, "epd")
    async with serving(card, [worker]) as served:
        await served.ids([picture(), TEXT], max_tokens=3)
        stages = [entry.split()[0] for entry in worker.log]
        assert stages == ["reserve", "prefill", "window", "encode", "decode"]


async def test_one_token_needs_no_decode_worker(card: ModelCard) -> None:
    async with serving(card, tiers(card, "e", "p")) as served:
        assert await served.ids([picture(), TEXT], max_tokens=1) == expected(1)
        response = await served.chat(max_tokens=2)
        assert response.status_code == 503


async def test_a_first_token_that_ends_everything_gives_the_reservation_back(card: ModelCard) -> None:
    encoder, prefill, decode = tiers(card, "e", "p", "d")
    prefill.finish_at = 0
    async with serving(card, [encoder, prefill, decode]) as served:
        response = await served.chat(max_tokens=9)
        assert response.json()["choices"][0]["finish_reason"] == "stop"
        await until(lambda: decode.reserved == 0)
        assert not any(entry.startswith("decode") for entry in decode.log)


async def test_items_of_one_request_are_spread_and_equal_ones_stay_together(card: ModelCard) -> None:
    first, second, *rest = tiers(card, "e", "e", "p", "d")
    async with serving(card, [first, second, *rest]) as served:
        await served.ids([picture(), picture("sign-tea.png"), picture(), TEXT], max_tokens=2)
        assert sorted((first.log + second.log)[:2]) == ["encode 0,2", "encode 1"]


@pytest.mark.parametrize("memfd", [True, False])
async def test_media_travel_by_memfd_on_one_host_and_in_chunks_elsewhere(card: ModelCard, memfd: bool) -> None:
    encoder, *rest = tiers(card, "e", "p", "d")
    async with serving(card, [encoder, *rest], memfd=memfd) as served:
        large = _png_of_bytes(3_500_000)
        assert await served.ids([image(large), TEXT], max_tokens=2) == expected(2)
        assert (encoder.memfd_reads, encoder.chunks) == ((1, 0) if memfd else (0, 4))


async def test_several_choices_are_told_apart(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd")) as served:
        response = await served.chat(n=3, max_tokens=4, return_token_ids=True)
        choices = response.json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2]
        assert [choice["token_ids"] for choice in choices] == [expected(4, choice) for choice in range(3)]
        assert response.json()["usage"]["completion_tokens"] == 12


async def test_many_requests_at_once_each_get_their_own(card: ModelCard) -> None:
    async with serving(card, tiers(card, "e", "p", "p", "d", "d")) as served:
        counts = random.Random(0).choices(range(1, 40), k=40)
        answers = await asyncio.gather(*(served.ids([picture(), TEXT], max_tokens=count) for count in counts))
        assert answers == [expected(count) for count in counts]


# ------------------------------------------------------------------------------------------------------------ streams


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


# ----------------------------------------------------------------------------------------------------------- retries


async def test_a_failed_encoder_costs_only_its_unfinished_items(card: ModelCard) -> None:
    first, second, *rest = tiers(card, "e", "e", "p", "d")
    first.fail_encode = [TransferFailed("no")]
    async with serving(card, [first, second, *rest]) as served:
        assert await served.ids([picture(), picture("sign-tea.png"), TEXT], max_tokens=3) == expected(3)
        assert first.log == ["encode 0"]
        assert second.log == ["encode 1", "encode 0"]


async def test_an_encoder_that_comes_back_is_asked_again(card: ModelCard) -> None:
    encoder, *rest = tiers(card, "e", "p", "d")
    async with serving(card, [encoder, *rest]) as served:
        encoder.gate.clear()
        answer = asyncio.create_task(served.ids([picture(), TEXT], max_tokens=3))
        await until(lambda: encoder.log == ["encode 0"])
        await encoder.restart()
        assert await answer == expected(3)


async def test_a_second_failure_of_a_stage_ends_the_request(card: ModelCard) -> None:
    encoder, *rest = tiers(card, "e", "p", "d")
    encoder.fail_encode = [ClaimExpired("a"), ClaimExpired("b")]
    async with serving(card, [encoder, *rest]) as served:
        response = await served.chat([picture(), TEXT], max_tokens=3)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert "try again" in response.json()["error"]["message"]
        assert await served.ids([picture(), TEXT], max_tokens=3) == expected(3)


async def test_a_bad_item_is_the_clients_error_and_is_not_retried(card: ModelCard) -> None:
    encoder, *rest = tiers(card, "e", "p", "d")
    encoder.fail_item = {1: InvalidMedia("the PNG is corrupt", item_index=1)}
    async with serving(card, [encoder, *rest]) as served:
        content = [TEXT, picture(), picture("sign-tea.png")]
        response = await served.chat(content, max_tokens=3)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["message"] == "image 1: the PNG is corrupt"
        assert error["param"] == "messages[0].content[2].image_url.url"
        assert error["code"] == "invalid_image"
        assert encoder.log[0] == "encode 0,1"
        await until(lambda: "cancel" in rest[0].log and rest[1].reserved == 0)


async def test_a_prefill_that_fails_before_any_token_is_done_again_elsewhere(card: ModelCard) -> None:
    first, second, *rest = tiers(card, "p", "p", "e", "d")
    first.fail_prefill = [ClaimExpired("gone")]
    async with serving(card, [first, second, *rest]) as served:
        assert await served.ids([picture(), TEXT], max_tokens=4) == expected(4)
        assert first.log[0] == "prefill attempt 0 after 0"
        assert second.log[0] == "prefill attempt 1 after 0"


async def test_a_prefill_worker_lost_once_all_tokens_are_out_costs_nothing(card: ModelCard) -> None:
    encoder, prefill, decode = tiers(card, "e", "p", "d")
    prefill.fail_prefill_late = [WorkerLost("gone")]
    async with serving(card, [encoder, prefill, decode]) as served:
        answer = asyncio.create_task(served.ids([picture(), TEXT], max_tokens=4))
        await until(lambda: any(entry.startswith("decode") for entry in decode.log))
        await asyncio.sleep(0.2)  # until the last token is out
        prefill.late_gate.set()
        assert await answer == expected(4)


@pytest.mark.parametrize("error", [TransferFailed("torn"), None])
async def test_a_lost_decode_is_continued_without_a_token_twice_or_missing(
    card: ModelCard, error: TransferFailed | None
) -> None:
    encoder, prefill, first, second = tiers(card, "e", "p", "d", "d")
    second.free_blocks = 10  # so that the first is chosen
    first.token_pause_seconds = 0.005
    async with serving(card, [encoder, prefill, first, second]) as served:
        if error is not None:
            first.fail_decode_at = {7: error}
            assert await served.ids([picture(), TEXT], max_tokens=20) == expected(20)
        else:
            answer = asyncio.create_task(served.ids([picture(), TEXT], max_tokens=100))
            await until(lambda: any(entry.startswith("decode") for entry in first.log))
            await asyncio.sleep(0.05)
            await first.kill()
            assert await answer == expected(100)
            await first.start()
        again = [entry for entry in prefill.log if entry.startswith("prefill")][1]
        assert again.startswith("prefill attempt 1 after ")
        assert int(again.split()[-1]) > 0
        assert any(entry.startswith("decode") for entry in second.log)


async def test_a_lost_decode_of_several_choices_is_an_error_and_never_wrong_text(card: ModelCard) -> None:
    (worker,) = tiers(card, "epd")
    worker.fail_decode_at = {3: TransferFailed("torn")}
    async with serving(card, [worker]) as served:
        response = await served.chat(n=2, max_tokens=9)
        assert response.status_code == 503


async def test_a_missing_token_is_an_error_and_never_a_gap(card: ModelCard) -> None:
    (worker,) = tiers(card, "epd")
    worker.skip_position = 4
    async with serving(card, [worker]) as served:
        response = await served.chat(max_tokens=9)
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "internal error"


async def test_a_broken_token_stream_is_mended_and_its_requests_continue(card: ModelCard) -> None:
    (worker,) = tiers(card, "epd")
    worker.token_pause_seconds = 0.005
    async with serving(card, [worker]) as served:
        answer = asyncio.create_task(served.ids(max_tokens=100))
        await until(lambda: any(entry.startswith("decode") for entry in worker.log))
        await worker.drop_routers()
        assert await answer == expected(100)


# ------------------------------------------------------------------------------------------------ leaving and waiting


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


async def test_a_stage_without_progress_ends_with_a_timeout(card: ModelCard) -> None:
    workers = tiers(card, "e", "p", "d")
    encoder = workers[0]
    async with serving(card, workers, stage_timeout_seconds=0.3) as served:
        encoder.gate.clear()
        began = time.monotonic()
        response = await served.chat([picture(), TEXT], max_tokens=3)
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "timeout"
        assert 0.2 < time.monotonic() - began < 3
        await until(lambda: all("cancel" in worker.log for worker in workers))
        encoder.gate.set()


async def test_want_of_room_is_a_429_that_says_when_to_come_back_and_silence_a_504(card: ModelCard) -> None:
    (worker,) = tiers(card, "epd")
    async with serving(card, [worker], stage_timeout_seconds=0.5) as served:
        worker.is_full = True
        for stream in (False, True):
            response = await served.chat(max_tokens=3, stream=stream)
            assert (response.status_code, response.json()["error"]["code"]) == (429, "overloaded")
            assert int(response.headers["retry-after"]) >= 1
        worker.gate.clear()
        assert (await served.chat(max_tokens=3)).status_code == 504
        worker.is_full = False
        worker.gate.set()
        assert (await served.chat(max_tokens=3)).status_code == 200


async def test_a_request_that_makes_progress_outlives_the_stage_timeout_but_not_its_own(card: ModelCard) -> None:
    (worker,) = tiers(card, "epd")
    worker.token_pause_seconds = 0.02
    async with serving(card, [worker], stage_timeout_seconds=0.3, request_timeout_seconds=1.5) as served:
        assert len(await served.ids(max_tokens=30)) == 30
        frames = await served.frames(max_tokens=1000)
        assert '"code": "timeout"' in frames[-1]


async def test_claims_are_renewed_while_the_request_waits(card: ModelCard) -> None:
    first, second, *rest = tiers(card, "e", "e", "p", "d")
    async with serving(card, [first, second, *rest], lease_seconds=0.3) as served:
        second.gate.clear()  # the other item keeps the request waiting
        asked = asyncio.create_task(served.ids([picture(), picture("sign-tea.png"), TEXT], max_tokens=2))
        await until(lambda: len(first.renewed) >= 2)
        assert len(set(first.renewed)) == 1
        second.gate.set()
        assert await asked == expected(2)
        await until(lambda: len(served.router.serving.pipeline._claims) == 0)


async def test_an_owner_that_does_not_answer_holds_up_no_other_owners_claims(card: ModelCard) -> None:
    first, second, third, *rest = tiers(card, "e", "e", "e", "p", "d")
    first.renew_hangs = True
    pictures = [picture(), picture("sign-tea.png"), picture("receipt.png")]
    async with serving(card, [first, second, third, *rest], lease_seconds=0.6) as served:
        third.gate.clear()  # the other items keep the request waiting
        asked = asyncio.create_task(served.ids([*pictures, TEXT], max_tokens=2))
        await until(lambda: len(second.renewed) >= 4)
        assert len(first.renewed) >= 3, "it is asked again, in time for its lease"
        third.gate.set()
        assert await asked == expected(2)
        await until(lambda: len(served.router.serving.pipeline._claims) == 0)


async def test_a_restart_of_everything_is_survived_by_the_router(card: ModelCard) -> None:
    workers = tiers(card, "e", "p", "d")
    async with serving(card, workers) as served:
        assert await served.ids([picture(), TEXT], max_tokens=3) == expected(3)
        for worker in workers:
            await worker.restart()
        assert await served.ids([picture(), TEXT], max_tokens=3) == expected(3)


async def test_a_timeline_is_told_on_request(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd")) as served:
        body = {"model": "tiny_vl", "messages": [{"role": "user", "content": [picture(), TEXT]}], "max_tokens": 3}
        headers = {"x-triptych-timeline": "1"}
        response = await served.client.post("/v1/chat/completions", json=body, headers=headers)
        stages = [entry.split(";")[0] for entry in response.headers["server-timing"].split(", ")]
        assert {"fetch", "sniff", "hash", "tokenize", "layout", "reserve", "first_token", "handover", "decode"} <= set(
            stages
        )
        assert "server-timing" not in (await served.chat()).headers


async def test_metrics_count_what_happened(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd")) as served:
        await served.chat([picture(), TEXT], max_tokens=5)
        text = (await served.client.get("/metrics")).text
        assert "triptych:generation_tokens_total 5.0" in text
        assert "triptych:images_total 1.0" in text
        assert 'triptych:request_success_total{finished_reason="length"} 1.0' in text
        assert 'triptych:kv_blocks{worker_id="epd-0",worker_type="aggregated"} 1000.0' in text


def _png_of_bytes(count: int) -> bytes:
    """A picture with a long tail that no decoder reads: sizes of files, not of pictures, are what is tested."""
    return (PICTURES / "red-circle.png").read_bytes() + random.Random(0).randbytes(count)
