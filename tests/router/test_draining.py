"""Workers that begin to drain while requests are on their way to them."""

import asyncio

import pytest

from tests.router.serving import picture, serving, tiers
from tests.router.test_pipeline import TEXT, expected
from triptych.models.card import ModelCard

pytestmark = pytest.mark.anyio


async def test_what_meets_a_worker_that_drains_goes_elsewhere_and_spends_no_retry(card: ModelCard) -> None:
    workers = tiers(card, "e", "e", "p", "p", "d", "d")
    leaving = workers[::2]
    async with serving(card, workers) as served:
        for worker in leaving:
            worker.drains = True
        asked = [served.ids([picture(), TEXT], max_tokens=5) for _ in range(20)]
        assert await asyncio.gather(*asked) == [expected(5)] * 20
        assert all("refused" in worker.log for worker in leaving), "each was asked by somebody"
        assert "triptych:retries_total{" not in (await served.client.get("/metrics")).text
        for worker in leaving:
            worker.log.clear()
        assert await served.ids([picture(), TEXT], max_tokens=5) == expected(5)
        assert not any("refused" in worker.log for worker in leaving), "nobody is asked twice"


async def test_a_worker_that_drains_finishes_what_it_has(card: ModelCard) -> None:
    first, second = tiers(card, "epd", "epd")
    first.token_pause_seconds = second.token_pause_seconds = 0.02
    async with serving(card, [first, second]) as served:
        asked = [asyncio.create_task(served.ids(max_tokens=20)) for _ in range(4)]
        async with asyncio.timeout(5):
            while sum(entry.startswith("decode after") for entry in [*first.log, *second.log]) < len(asked):
                await asyncio.sleep(0.01)
        first.drains = True
        assert [await each for each in asked] == [expected(20)] * 4
        assert any(entry.startswith("decode after") for entry in first.log), "it had something to finish"
        assert not any(entry.startswith("prefill attempt 1") for entry in [*first.log, *second.log])
