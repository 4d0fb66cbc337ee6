"""Items are encoded window by window, as the prefill worker grants room; what it has cached is not encoded at all."""

import asyncio

import pytest

from tests.router.loopback import LoopbackWorker
from tests.router.serving import TEXT, expected, picture, serving, tiers, until
from triptych.errors import ClaimExpired, TransferFailed
from triptych.journey import new_request_id
from triptych.models.card import ModelCard
from triptych.multimodal.layout import TextPart, lay_out
from triptych.pb.prefill_pb2 import Accepted
from triptych.router.observe.timeline import Timeline
from triptych.router.pipeline.request import Prepared, Request
from triptych.sampling import Sampling

pytestmark = pytest.mark.anyio
NAMES = ("red-circle.png", "sign-tea.png", "chart.png", "letters.png", "tower.png")
PICTURES = [picture(name) for name in NAMES]


def stages(worker: LoopbackWorker, *names: str) -> list[str]:
    return [entry for entry in worker.log if entry.split()[0] in names]


async def test_each_window_is_encoded_only_once_it_is_granted(card: ModelCard) -> None:
    (worker,) = tiers(card, "epd")
    worker.window_items = 2
    async with serving(card, [worker]) as served:
        assert await served.ids([*PICTURES, TEXT], max_tokens=4) == expected(4)
        assert stages(worker, "window", "encode") == [
            *("window 0,1", "encode 0,1"),
            *("window 2,3", "encode 2,3"),
            *("window 4", "encode 4"),
        ]
        assert worker.refs == 5


async def test_windows_are_spread_over_encoders_and_their_claims_are_let_go(card: ModelCard) -> None:
    first, second, *rest = tiers(card, "e", "e", "p", "d")
    rest[0].window_items = 2
    async with serving(card, [first, second, *rest]) as served:
        assert await served.ids([*PICTURES[:4], TEXT], max_tokens=3) == expected(3)
        assert sorted(first.log + second.log) == ["encode 0", "encode 1", "encode 2", "encode 3"]
        await until(lambda: len(served.router.serving.pipeline._claims) == 0)


@pytest.mark.parametrize("together", [True, False])
async def test_what_is_ready_together_is_given_on_together(card: ModelCard, together: bool) -> None:
    encoder, prefill, decode = tiers(card, "e", "p", "d")
    encoder.tells_together = prefill.tells_together = together
    async with serving(card, [encoder, prefill, decode]) as served:
        assert await served.ids([*PICTURES, TEXT], max_tokens=4) == expected(4)
        assert (prefill.refs, prefill.ref_messages) == (5, 1 if together else 5)
        await until(lambda: len(served.router.serving.pipeline._claims) == 0)


async def test_an_item_that_fails_beside_others_is_alone_encoded_again(card: ModelCard) -> None:
    encoder, prefill, decode = tiers(card, "e", "p", "d")
    encoder.tells_together = True
    encoder.fail_item[1] = TransferFailed("other bytes came")
    async with serving(card, [encoder, prefill, decode]) as served:
        assert await served.ids([*PICTURES[:3], TEXT], max_tokens=3) == expected(3)
        assert encoder.log == ["encode 0,1,2", "encode 1"]
        assert (prefill.refs, prefill.ref_messages) == (3, 2)


async def test_text_alone_asks_no_encoder(card: ModelCard) -> None:
    encoder, prefill, decode = tiers(card, "e", "p", "d")
    async with serving(card, [encoder, prefill, decode]) as served:
        assert await served.ids("hello", max_tokens=3) == expected(3)
        assert encoder.log == []
        await encoder.kill()
        assert await served.ids("hello again", max_tokens=3) == expected(3)


async def test_a_prompt_that_is_cached_asks_no_encoder_and_says_so_in_its_usage(card: ModelCard) -> None:
    encoder, prefill, decode = tiers(card, "e", "p", "d")
    prefill.cached_items = 2
    async with serving(card, [encoder, prefill, decode]) as served:
        response = await served.chat([*PICTURES[:2], TEXT], max_tokens=3, return_token_ids=True)
        assert response.json()["choices"][0]["token_ids"] == expected(3)
        usage = response.json()["usage"]
        assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
        assert (encoder.log, encoder.chunks, encoder.memfd_reads, prefill.refs) == ([], 0, 0, 0)


async def test_only_what_the_cache_does_not_cover_is_encoded_and_sent(card: ModelCard) -> None:
    encoder, prefill, decode = tiers(card, "e", "p", "d")
    prefill.cached_items = 1
    async with serving(card, [encoder, prefill, decode]) as served:
        assert await served.ids([*PICTURES[:3], TEXT], max_tokens=3) == expected(3)
        assert (encoder.log, encoder.memfd_reads, prefill.refs) == (["encode 1,2"], 2, 2)


async def test_items_whose_rows_the_prefill_worker_has_are_asked_of_no_encoder_and_count_as_cached(
    card: ModelCard,
) -> None:
    (worker,) = tiers(card, "epd")
    worker.window_items, worker.held = 2, frozenset({0, 2, 3})
    async with serving(card, [worker]) as served:
        assert await served.ids([*PICTURES, TEXT], max_tokens=4) == expected(4)
        assert stages(worker, "encode") == ["encode 1", "encode 4"]
        assert worker.refs == 2
        metrics = (await served.client.get("/metrics")).text
        assert 'triptych:encoder_requests_total{modality="image",status="cached"} 3.0' in metrics
        assert 'triptych:encoder_requests_total{modality="image",status="encoded"} 2.0' in metrics


@pytest.mark.parametrize("dies", ["while it encodes the second window", "between two windows"])
async def test_an_encoder_that_dies_costs_only_the_windows_that_are_left(card: ModelCard, dies: str) -> None:
    first, second, prefill, decode = tiers(card, "e", "e", "p", "d")
    prefill.window_items = 1
    second.queued_tokens = 1 << 20  # so that the first is asked, while it lives
    async with serving(card, [first, second, prefill, decode]) as served:
        prefill.window_gate.clear()
        asked = asyncio.create_task(served.ids([*PICTURES[:3], TEXT], max_tokens=3))
        await until(lambda: prefill.refs == 1)
        if dies == "while it encodes the second window":
            first.gate.clear()
            prefill.window_gate.set()
            await until(lambda: "encode 1" in first.log)
        await first.kill()
        prefill.window_gate.set()
        assert await asked == expected(3)
        assert second.log == ["encode 1", "encode 2"]
        assert prefill.refs == 3
        await until(lambda: decode.reserved == 0)
        assert len(served.router.serving.pipeline._claims) == 0


async def test_a_prefill_that_fails_between_windows_is_done_again_from_the_first(card: ModelCard) -> None:
    first, second, encoder, decode = tiers(card, "p", "p", "e", "d")
    first.window_items = second.window_items = 2
    first.fail_prefill_after = {2: ClaimExpired("gone")}
    async with serving(card, [first, second, encoder, decode]) as served:
        assert await served.ids([*PICTURES[:3], TEXT], max_tokens=3) == expected(3)
        assert (first.refs, second.refs) == (2, 3)
        assert stages(second, "prefill", "window") == ["prefill attempt 1 after 0", "window 0,1", "window 2"]


async def test_one_failure_of_an_item_in_a_later_window_is_mended_there(card: ModelCard) -> None:
    encoder, prefill, decode = tiers(card, "e", "p", "d")
    prefill.window_items = 2
    encoder.fail_item = {3: TransferFailed("torn")}
    async with serving(card, [encoder, prefill, decode]) as served:
        assert await served.ids([*PICTURES[:4], TEXT], max_tokens=3) == expected(3)
        assert encoder.log == ["encode 0,1", "encode 2,3", "encode 3"]


async def test_a_client_that_leaves_between_windows_is_forgotten_everywhere(card: ModelCard) -> None:
    encoder, prefill, decode = workers = tiers(card, "e", "p", "d")
    prefill.window_items = 1
    async with serving(card, workers) as served:
        prefill.window_gate.clear()
        asked = asyncio.create_task(served.chat([*PICTURES[:2], TEXT], max_tokens=50))
        await until(lambda: prefill.refs == 1)
        asked.cancel()
        await asyncio.wait({asked})
        await until(lambda: all("cancel" in worker.log for worker in workers), seconds=2)
        await until(lambda: decode.reserved == 0 and len(served.router.serving.pipeline._claims) == 0)
        assert encoder.log == ["encode 0", "cancel"]
        prefill.window_gate.set()


async def test_a_continuation_that_finds_its_own_kv_does_not_count_as_cached(card: ModelCard) -> None:
    encoder, prefill, first, second = tiers(card, "e", "p", "d", "d")
    second.free_blocks = 10  # so that the first is chosen
    first.token_pause_seconds = 0.01
    first.fail_decode_at = {20: TransferFailed("torn")}
    async with serving(card, [encoder, prefill, first, second]) as served:
        asked = asyncio.create_task(served.chat([PICTURES[0], TEXT], max_tokens=25, return_token_ids=True))
        await until(lambda: "decode after 1" in first.log)
        prefill.cached_items = 1
        reply = (await asked).json()
        assert reply["choices"][0]["token_ids"] == expected(25)
        assert stages(encoder, "encode") == ["encode 0"]
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_the_salt_of_a_request_reaches_prefill_with_every_attempt(card: ModelCard) -> None:
    (worker,) = tiers(card, "epd")
    worker.fail_prefill = [ClaimExpired("gone")]
    layout = lay_out([TextPart((11, 12, 13))])
    async with serving(card, [worker]) as served:
        prepared = Prepared(layout, (), Sampling(max_tokens=3), branches=1, image_params=(), cache_salt=b"tenant")
        request = Request(new_request_id(), prepared, Timeline())
        await served.router.serving.pipeline.run(request)
        assert request.generated == [expected(3)]
        assert worker.salts == [b"tenant", b"tenant"]


WRONG: dict[str, list[Accepted]] = {
    "an item that is not there": [Accepted(items=[2])],
    "an item twice": [Accepted(items=[0, 0])],
    "an item again": [Accepted(items=[0], more=True), Accepted(items=[0, 1])],
    "a window behind the last": [Accepted(items=[0]), Accepted(items=[1])],
    "an item to be encoded that is held": [Accepted(items=[0], held=[0])],
    "a held item that is not there": [Accepted(held=[2])],
    "no last window": [Accepted(items=[], more=True)],
}


@pytest.mark.parametrize("name", WRONG)
async def test_windows_that_make_no_sense_end_the_request_and_nothing_hangs(card: ModelCard, name: str) -> None:
    (worker,) = tiers(card, "epd")
    async with serving(card, [worker]) as served:
        worker.grant_wrongly = list(WRONG[name])
        response = await served.chat([*PICTURES[:2], TEXT], max_tokens=3)
        assert response.status_code == 500, response.text
        await until(lambda: worker.reserved == 0 and len(served.router.serving.pipeline._claims) == 0)
        assert await served.ids([*PICTURES[:2], TEXT], max_tokens=3) == expected(3)


async def test_one_picture_in_eight_requests_is_made_once_by_each_encoder_that_is_asked(card: ModelCard) -> None:
    """The scope of the cache is an encoder, and load alone places items: two encoders make the picture twice."""
    first, second, *rest = tiers(card, "e", "e", "p", "d")
    async with serving(card, [first, second, *rest]) as served:
        for worker in (first, second):
            worker.gate.clear()
        asked = [asyncio.create_task(served.ids([picture(), TEXT], max_tokens=2)) for _ in range(8)]
        await until(lambda: len(first.log) + len(second.log) == 8)
        for worker in (first, second):
            worker.gate.set()
        assert await asyncio.gather(*asked) == [expected(2)] * 8
        assert min(len(first.log), len(second.log)) >= 2
        made = {(worker.worker_id, digest) for worker in (first, second) for digest in worker.digests}
        assert len(made) == 2


async def test_items_go_to_encoders_that_take_them_and_the_largest_such_encoder_is_the_limit(card: ModelCard) -> None:
    first, second, *rest = tiers(card, "e", "e", "p", "d")
    first.max_item_tokens, second.max_item_tokens = 16, 4000
    async with serving(card, [first, second, *rest]) as served:
        await until(lambda: served.router.fleet.max_item_tokens() == 4000)
        assert await served.ids([*PICTURES[:3], TEXT], max_tokens=3) == expected(3)
        assert (first.log, second.log) == ([], ["encode 0,1,2"])
        await second.kill()
        await until(lambda: served.router.fleet.max_item_tokens() == 16)
        first.max_item_tokens = 0  # has not told
        await until(lambda: served.router.fleet.max_item_tokens() > 1 << 40)
