"""Who is asked again when a stage fails, and what must not be: over HTTP, with workers that compute nothing."""

import asyncio

import pytest

from tests.router.serving import TEXT, expected, picture, serving, tiers, until
from triptych.errors import ClaimExpired, InvalidMedia, TransferFailed, WorkerLost
from triptych.models.card import ModelCard

pytestmark = pytest.mark.anyio


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


async def test_a_restart_of_everything_is_survived_by_the_router(card: ModelCard) -> None:
    workers = tiers(card, "e", "p", "d")
    async with serving(card, workers) as served:
        assert await served.ids([picture(), TEXT], max_tokens=3) == expected(3)
        for worker in workers:
            await worker.restart()
        assert await served.ids([picture(), TEXT], max_tokens=3) == expected(3)
