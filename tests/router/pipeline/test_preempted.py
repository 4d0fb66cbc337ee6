"""Who is served first where KV blocks are short, and who makes room there."""

import re

import pytest

from tests.router.serving import TEXT, expected, picture, serving, tiers
from triptych.errors import Preempted
from triptych.models.card import ModelCard

pytestmark = pytest.mark.anyio


async def test_a_request_that_makes_room_again_and_again_is_continued_and_spends_no_retry(card: ModelCard) -> None:
    (worker,) = tiers(card, "epd")
    worker.fail_decode_at = {position: Preempted("out of blocks") for position in (2, 5, 6, 7, 11)}
    async with serving(card, [worker]) as served:
        assert await served.ids([picture(), TEXT], max_tokens=20) == expected(20)
        again = [entry.split()[-1] for entry in worker.log if entry.startswith("prefill attempt")]
        assert again == ["0", "2", "5", "6", "7", "11"], "behind the tokens that it had"
        text = (await served.client.get("/metrics")).text
        assert not re.search(r"^triptych:retries_total\{.* [^0]", text, re.MULTILINE)


async def test_blocks_are_asked_for_with_the_priority_of_the_request(card: ModelCard) -> None:
    (worker,) = tiers(card, "epd")
    async with serving(card, [worker]) as served:
        for priority in (None, -7, 1 << 20):
            assert await served.ids(max_tokens=3, priority=priority) == expected(3)
        assert [asked.priority for asked in worker.reserves] == [0, -7, 1 << 20]
        for wrong in (1 << 31, True, "high"):
            response = await served.chat(priority=wrong)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "priority"


async def test_who_waits_for_one_that_makes_room_does_not_give_up(card: ModelCard) -> None:
    (worker,) = tiers(card, "epd")
    worker.waits_at = {3: 2.0, 5: 2.0}
    async with serving(card, [worker], stage_timeout_seconds=1.0) as served:
        assert await served.ids(max_tokens=9) == expected(9)
        worker.token_pause_seconds = 3.0
        assert (await served.chat(max_tokens=9)).status_code == 504, "one that says nothing is given up"
