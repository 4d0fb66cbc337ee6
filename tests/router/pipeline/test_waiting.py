"""Requests that wait: for how long, with which end, and what is kept for them meanwhile."""

import asyncio
import time

import pytest

from tests.router.serving import TEXT, expected, picture, serving, tiers, until
from triptych.models.card import ModelCard

pytestmark = pytest.mark.anyio


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
