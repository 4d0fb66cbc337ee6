"""No worker takes anything before the self-test has let it in, and one that answers wrongly never does."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.router.loopback import LoopbackWorker
from tests.router.serving import Served, picture, say, serving, tiers, until
from triptych.errors import InternalError, MediaTooLarge
from triptych.models.card import ModelCard, load_card
from triptych.router.pipeline import proving
from triptych.router.pipeline.self_test import FILE, NUM_TOKENS, known_answer

pytestmark = pytest.mark.anyio
UNUSED_ID = 99


def right(card: ModelCard) -> Sequence[int]:
    """Longer than the self-test asks for, as an answer may be that goes on."""
    return (*known_answer(card.folder), *range(60, 60 + NUM_TOKENS))


def wrong(card: ModelCard) -> Sequence[int]:
    """Right as far as prefill goes, and then no more."""
    return (right(card)[0], *[UNUSED_ID] * NUM_TOKENS)


async def told(served: Served, workers: Sequence[LoopbackWorker], *, hanging: bool = False) -> None:
    """Starts the workers and tells the router of them."""
    for worker in workers:
        await worker.start()
        if hanging:
            worker.gate.clear()
    served.workers += workers
    served.router.fleet.update([worker.known for worker in served.workers])


def states(served: Served) -> dict[str, str]:
    return {link.worker_id: str(link.state) for link in served.router.fleet.links}


async def ready(served: Served) -> tuple[int, Any]:
    response = await served.client.get("/ready")
    return response.status_code, response.json()


async def test_nothing_is_ready_before_a_picture_has_gone_through_every_role(card: ModelCard) -> None:
    workers = tiers(card, "e", "p", "d")
    async with serving(card, self_test=True) as served:
        for worker in workers:
            worker.says = right(card)
        await told(served, workers)
        workers[1].gate.clear()
        await until(lambda: any("prefill" in line for line in workers[1].log))
        status, body = await ready(served)
        assert status == 503
        assert body["missing"] == ["encode", "prefill", "decode"]
        assert body["why"]["decode"] == {"d-2": "testing: the self-test has not come to it yet"}
        assert (await served.client.get("/health")).status_code == 503
        workers[1].gate.set()
        await until(lambda: set(states(served).values()) == {"ready"})
        assert await ready(served) == (200, {"status": "ready", "missing": []})
        assert any("encode" in line for line in workers[0].log)
        assert any("decode" in line for line in workers[2].log)
        assert all(all(worker.checksums) for worker in workers)
        before = [len(worker.checksums) for worker in workers]
        assert (await served.chat([picture()], max_tokens=3)).status_code == 200
        asked = [worker.checksums[count:] for worker, count in zip(workers, before, strict=True)]
        assert asked == [[False]] * 3


async def test_a_worker_that_answers_wrongly_is_kept_out_loudly_and_the_others_serve(
    card: ModelCard, caplog: pytest.LogCaptureFixture
) -> None:
    workers = tiers(card, "e", "p", "d", "d")
    async with serving(card, self_test=True) as served:
        for worker in workers:
            worker.says = right(card)
        workers[2].says = wrong(card)
        await told(served, workers)
        await until(lambda: states(served)["d-2"] == "faulty" and states(served)["d-3"] == "ready")
        assert (await ready(served))[0] == 200
        assert [record.levelno for record in caplog.records if "WRONG ANSWER" in record.message][-1] == logging.CRITICAL
        asked = len(workers[2].reserves)
        assert [await served.ids("hello", max_tokens=3) for _ in range(4)] == [list(right(card)[:3])] * 4
        assert len(workers[2].reserves) == asked
        cluster = (await served.client.get("/v1/cluster")).json()["workers"]
        assert "wrong answer" in next(row["reason"] for row in cluster if row["worker_id"] == "d-2")


async def test_ready_says_that_the_only_worker_is_wrong_until_another_process_takes_its_place(card: ModelCard) -> None:
    workers = tiers(card, "e", "p", "d")
    async with serving(card, self_test=True) as served:
        for worker in workers:
            worker.says = right(card)
        workers[2].says = wrong(card)
        await told(served, workers)
        await until(lambda: "wrong answer" in served.router.fleet.links[0].reason)
        status, body = await ready(served)
        assert status == 503
        assert f"token 1 is {UNUSED_ID}, expected {right(card)[1]}" in body["why"]["decode"]["d-2"]
        workers[2].says = right(card)
        await workers[2].restart()
        served.router.fleet.update([worker.known for worker in workers])
        await until(lambda: set(states(served).values()) == {"ready"})


async def test_a_worker_that_requests_wait_for_is_tested_without_the_room_that_they_hold(card: ModelCard) -> None:
    encode, prefill, decode = workers = tiers(card, "e", "p", "d")
    async with serving(card, self_test=True) as served:
        for worker in workers:
            worker.says = right(card)
        await told(served, workers)
        await until(lambda: set(states(served).values()) == {"ready"})
        decode.is_full = True
        await prefill.restart()
        served.router.fleet.update([worker.known for worker in workers])
        await until(lambda: served.router.fleet.links[2].incarnation == prefill.incarnation)
        await until(lambda: set(states(served).values()) == {"ready"})
        prefill.gate.clear()
        await encode.restart()
        served.router.fleet.update([worker.known for worker in workers])
        await until(lambda: served.router.fleet.links[1].incarnation == encode.incarnation)
        await until(lambda: set(states(served).values()) == {"ready"})


async def test_a_prefill_worker_that_comes_later_must_come_to_the_same_tokens(card: ModelCard) -> None:
    workers, (late,) = tiers(card, "e", "p", "d"), tiers(card, "p")
    late.worker_id = "late"
    async with serving(card, self_test=True) as served:
        for worker in workers:
            worker.says = right(card)
        await told(served, workers)
        await until(lambda: set(states(served).values()) == {"ready"})
        late.says = [UNUSED_ID] * NUM_TOKENS
        await told(served, [late])
        await until(lambda: states(served).get(late.worker_id) == "faulty")
        assert (await ready(served))[0] == 200


async def test_a_newcomer_that_takes_its_time_holds_up_nobody_and_not_for_ever(
    card: ModelCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers, slow = tiers(card, "e", "p", "d"), tiers(card, *["e"] * 6)
    async with serving(card, self_test=True) as served:
        for worker in [*workers, *slow]:
            worker.says = right(card)
        await told(served, workers)
        await until(lambda: set(states(served).values()) == {"ready"})
        for number, worker in enumerate(slow):
            worker.worker_id = f"a-{number}"  # first in any order
        await told(served, slow, hanging=True)
        await until(lambda: sum(any("encode" in line for line in worker.log) for worker in slow) == 4)
        await workers[2].restart()
        served.router.fleet.update([worker.known for worker in served.workers])
        await until(lambda: states(served)["d-2"] == "ready")
        assert [states(served)[worker.worker_id] for worker in slow] == ["testing"] * 6
    monkeypatch.setattr(proving, "TEST_SECONDS", 0.3)
    (late,) = tiers(card, "epd")
    async with serving(card, self_test=True) as served:
        late.says = right(card)
        await told(served, [late], hanging=True)
        await until(lambda: served.router.fleet.links[0].reason == "the self-test was not through within 0.3 s")
        late.gate.set()
        await until(lambda: states(served)["epd-0"] == "ready")


async def test_an_encoder_whose_rows_nobody_knows_is_tested_with_all_roles(card: ModelCard) -> None:
    workers, (late,) = tiers(card, "e", "p", "d"), tiers(card, "e")
    late.worker_id, late.row_sum = "late", bytes(16)
    async with serving(card, self_test=True) as served:
        for worker in workers:
            worker.says = right(card)
        await told(served, workers)
        await until(lambda: set(states(served).values()) == {"ready"})
        reserved = len(workers[2].reserves)
        await told(served, [late])
        await until(lambda: states(served).get("late") == "ready")
        assert len(workers[2].reserves) == reserved + 1


async def test_without_a_known_answer_prefill_alone_says_what_is_right(card: ModelCard, tmp_path: Path) -> None:
    for file in card.folder.iterdir():
        if file.name != FILE:
            (tmp_path / file.name).symlink_to(file)
    plain = load_card(str(tmp_path), "float32")
    workers = tiers(plain, "e", "p", "d")
    async with serving(plain, self_test=True) as served:
        for worker in workers:
            worker.says = right(card)
        workers[2].says = wrong(card)
        await told(served, workers)
        await until(lambda: f"token 1 is {UNUSED_ID} as decoded, prefill says" in served.router.fleet.links[0].reason)
        assert (await ready(served))[0] == 503


async def test_a_test_that_failed_for_another_reason_is_made_again(card: ModelCard) -> None:
    workers = tiers(card, "e", "p", "d")
    workers[1].fail_prefill = [InternalError("a moment of weakness")]
    async with serving(card, self_test=True) as served:
        for worker in workers:
            worker.says = right(card)
        await told(served, workers)
        await until(lambda: set(states(served).values()) == {"ready"})
        assert not workers[1].fail_prefill


async def test_workers_that_can_hold_no_picture_are_let_in_with_a_warning(
    card: ModelCard, caplog: pytest.LogCaptureFixture
) -> None:
    workers = tiers(card, "epd")
    workers[0].fail_item = {0: MediaTooLarge("larger than the arena")}
    async with serving(card, self_test=True) as served:
        await told(served, say(workers, card, "hello"))
        await until(lambda: set(states(served).values()) == {"ready"})
        assert any("let in untested" in record.message for record in caplog.records)


async def test_a_worker_that_comes_back_from_silence_is_not_tested_again(card: ModelCard) -> None:
    workers = tiers(card, "epd")
    async with serving(card, self_test=True) as served:
        workers[0].says = right(card)
        await told(served, workers)
        await until(lambda: states(served)["epd-0"] == "ready")
        encodes = len(workers[0].digests)
        workers[0].state = "loading"
        await until(lambda: states(served)["epd-0"] == "unknown")
        workers[0].state = "ready"
        await until(lambda: states(served)["epd-0"] == "ready")
        assert len(workers[0].digests) == encodes
