"""Two sets of workers with a model each: what a request meets of them when another one comes to serve."""

import asyncio
import dataclasses

import pytest

from tests.metrics.test_books import samples
from tests.router.loopback import LoopbackWorker
from tests.router.serving import TEXT, Served, expected, picture, serving, tiers, until
from triptych.errors import WorkerLost
from triptych.journey import Role
from triptych.models.card import ModelCard
from triptych.router.model_set import ModelSet
from triptych.router.pipeline.retries import MOST_CREDIT

pytestmark = pytest.mark.anyio


async def second_set(served: Served, card: ModelCard) -> list[LoopbackWorker]:
    """Its workers, which are ready; nothing begins with them yet."""
    other = dataclasses.replace(card, fingerprint=bytes(32), max_model_len=100)
    workers = tiers(other, "e", "p", "d")
    for worker in workers:
        worker.worker_id += ".2"
        await worker.start()
    served.workers += workers
    old = [worker.known for worker in served.workers if worker not in workers]
    model_set = ModelSet(2, other, served.router.common)
    served.router.tell({1: old, 2: [worker.known for worker in workers]}, 1, new=[model_set])
    await until(lambda: all(model_set.fleet.is_ready(role) for role in Role))
    return workers


def shift(served: Served, new: list[LoopbackWorker], *, keep_old: bool = True) -> None:
    old = [worker.known for worker in served.workers if worker not in new]
    known = {2: [worker.known for worker in new]}
    served.router.tell(known | ({1: old} if keep_old else {}), 2, turn=1)


async def begun(served: Served, worker: LoopbackWorker) -> "asyncio.Task[list[int]]":
    """A request that decodes at this worker."""
    asked = asyncio.create_task(served.ids([picture(), TEXT], max_tokens=20))
    await until(lambda: any(entry.startswith("decode after") for entry in worker.log))
    return asked


async def test_a_request_stays_with_the_set_it_has_begun_with_also_where_it_is_tried_again(card: ModelCard) -> None:
    old = tiers(card, "e", "p", "d", "d")
    for worker in old:
        worker.token_pause_seconds = 0.02
    async with serving(card, old) as served:
        new = await second_set(served, card)
        asked = await begun(served, old[2])
        assert not any(worker.log for worker in new), "it does not serve yet"
        shift(served, new)
        assert await served.ids([picture(), TEXT], max_tokens=5) == expected(5)
        assert all(worker.log for worker in new)
        for worker in new:
            worker.log.clear()
        await old[2].kill()
        assert await asked == expected(20)
        assert any(entry.startswith("decode after") for entry in old[3].log), "it went on beside the one that died"
        assert not any(worker.log for worker in new)
        assert not old[0].digests & new[0].digests, "one picture, and nothing that both could share"
        (model,) = (await served.client.get("/v1/models")).json()["data"]
        assert (model["id"], model["max_model_len"]) == ("tiny_vl", 100)
        assert (await served.chat(max_tokens=101)).status_code == 400
        told = (await served.client.get("/v1/cluster")).json()
        assert [(each["set"], each["serving"], each["requests"]) for each in told["sets"]] == [
            (1, False, 0),
            (2, True, 0),
        ]
        assert {each["worker_id"]: each["set"] for each in told["workers"]}["d-2.2"] == 2
        assert 'worker_id="d-2.2"' in (await served.client.get("/metrics")).text


async def test_room_for_retries_is_that_of_the_set_that_has_least(card: ModelCard) -> None:
    async def room(served: Served) -> float:
        found = samples((await served.client.get("/metrics")).content)
        return found["triptych:retry_budget{}"]

    async with serving(card, tiers(card, "e", "p", "d")) as served:
        assert await room(served) == MOST_CREDIT
        served.workers[1].fail_prefill.append(WorkerLost("as told"))
        assert (await served.chat(max_tokens=2)).status_code == 200
        assert await room(served) == MOST_CREDIT - 1
        new = await second_set(served, card)
        assert await room(served) == MOST_CREDIT - 1, "the new set has all of its own"
        shift(served, new)
        assert (await served.chat(max_tokens=2)).status_code == 200
        assert await room(served) == MOST_CREDIT - 1
        shift(served, new, keep_old=False)
        assert await room(served) == MOST_CREDIT


async def test_what_a_set_still_has_when_it_goes_fails_and_says_so(card: ModelCard) -> None:
    old = tiers(card, "e", "p", "d")
    old[2].token_pause_seconds = 0.05
    async with serving(card, old) as served:
        new = await second_set(served, card)
        running = asyncio.create_task(served.frames([picture(), TEXT], max_tokens=200))
        await until(lambda: any(entry.startswith("decode after") for entry in old[2].log))
        old[1].gate.clear()
        waiting = asyncio.create_task(served.chat([picture(), TEXT], max_tokens=5))
        await until(lambda: served.router.sets[1].requests == 2)
        shift(served, new, keep_old=False)
        assert "worker of this request's model is left" in (await running)[-1]
        reply = await waiting
        assert (reply.status_code, "of this request's model is left" in reply.text) == (503, True), reply.text
        assert [*served.router.sets] == [2]
        assert 'worker_id="d-2"' not in (await served.client.get("/metrics")).text
        assert await served.ids(max_tokens=5) == expected(5)
