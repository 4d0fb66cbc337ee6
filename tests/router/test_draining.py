"""Workers that begin to drain while requests are on their way to them."""

import asyncio
import logging
import re

import pytest

from tests.router.loopback import LoopbackWorker
from tests.router.serving import TEXT, expected, picture, serving, tiers, until
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
        text = (await served.client.get("/metrics")).text
        assert not re.search(r"^triptych:retries_total\{.* [^0]", text, re.MULTILINE)
        for worker in leaving:
            worker.log.clear()
        assert await served.ids([picture(), TEXT], max_tokens=5) == expected(5)
        assert not any("refused" in worker.log for worker in leaving), "nobody is asked twice"


async def test_one_that_ends_once_it_has_drained_is_no_loss(card: ModelCard, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    leaving, staying, killed = tiers(card, "epd", "epd", "epd")
    async with serving(card, [leaving, staying, killed]) as served:

        def state(worker: LoopbackWorker) -> str:
            return next((link.state for link in served.router.fleet.links if link.worker_id == worker.worker_id), "")

        leaving.state = "draining"
        await until(lambda: state(leaving) == "draining")
        served.router.fleet.update([worker.known for worker in (staying, killed)])
        await leaving.kill()
        await killed.kill()
        await until(lambda: "not answer (UNAVAILABLE)" in str(served.router.fleet.describe()))
        await until(lambda: {"epd-0", "epd-2"} <= {word for line in gone(caplog) for word in line.split()})
    assert [line.split()[1] for line in gone(caplog) if " is lost: " in line] == ["epd-2"]


def gone(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if " is lost: " in record.message or "let go" in record.message]


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
