"""The journey over HTTP, with workers that speak the protocol and compute nothing."""

import asyncio
import random

import pytest

from tests.router.serving import PICTURES, TEXT, expected, image, picture, serving, tiers, until
from triptych.journey import Role
from triptych.models.card import ModelCard

pytestmark = pytest.mark.anyio


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


@pytest.mark.parametrize("topology", [("e", "pd", "pd"), ("epd", "epd")])
async def test_a_worker_that_does_both_prefills_what_it_decodes(card: ModelCard, topology: tuple[str, ...]) -> None:
    workers = tiers(card, *topology)
    roomy, idle = workers[-2:]
    idle.free_blocks, roomy.queued_tokens = 10, 500  # each would be chosen for one role
    async with serving(card, workers) as served:
        await until(lambda: served.router.fleet.snapshot.roles[Role.PREFILL].reported.max() == 500)
        answers = await asyncio.gather(*(served.ids([picture(), TEXT], max_tokens=9) for _ in range(20)))
        assert answers == [expected(9)] * 20
        for worker in (roomy, idle):
            prefilled = sum(entry.startswith("prefill") for entry in worker.log)
            assert prefilled == sum(entry.startswith("reserve") for entry in worker.log)


async def test_blocks_at_a_worker_that_drains_since_are_filled_by_another(card: ModelCard) -> None:
    leaving, staying = workers = tiers(card, "epd", "epd")
    async with serving(card, workers) as served:
        leaving.gate.clear()
        asked = asyncio.create_task(served.ids(max_tokens=5))
        await until(lambda: any(entry.startswith("reserve") for entry in leaving.log))
        leaving.state = "draining"
        await until(lambda: not served.router.fleet.links[0].takes(Role.PREFILL))
        leaving.gate.set()
        assert await asked == expected(5)
        assert "decode after 1" in leaving.log
        assert "prefill attempt 0 after 0" in staying.log


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
