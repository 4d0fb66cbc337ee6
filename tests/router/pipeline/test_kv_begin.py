"""What decode has of a prompt's KV is looked up when blocks are reserved, and prefill is told where to begin."""

import pytest

from tests.router.serving import expected, picture, serving, tiers
from triptych import wire
from triptych.errors import ClaimExpired, TransferFailed
from triptych.journey import new_request_id
from triptych.models.card import ModelCard
from triptych.multimodal.layout import TextPart, lay_out
from triptych.router.observe.timeline import Timeline
from triptych.router.pipeline.request import Prepared, Request
from triptych.sampling import Sampling

pytestmark = pytest.mark.anyio
TEXT = {"type": "text", "text": "what is it?"}


async def test_prefill_is_asked_for_the_kv_that_decode_has_not(card: ModelCard) -> None:
    encoder, prefill, decode = tiers(card, "e", "p", "d")
    decode.kv_here = 16
    async with serving(card, [encoder, prefill, decode]) as served:
        assert await served.ids([picture(), TEXT], max_tokens=5) == expected(5)
        decode.kv_here = 0
        assert await served.ids([picture(), TEXT], max_tokens=5) == expected(5)
    assert prefill.kv_begins == [16, 0]


async def test_a_reservation_says_which_prompt_it_is_for_with_every_attempt(card: ModelCard) -> None:
    (worker,) = tiers(card, "epd")
    worker.fail_prefill = [ClaimExpired("gone")]
    worker.fail_decode_at = {4: TransferFailed("torn")}
    layout = lay_out([TextPart(tuple(range(11, 40)))])
    async with serving(card, [worker]) as served:
        prepared = Prepared(layout, (), Sampling(max_tokens=9), branches=1, image_params=(), cache_salt=b"tenant")
        request = Request(new_request_id(), prepared, Timeline())
        await served.router.serving.pipeline.run(request)
    assert request.generated == [expected(9)]
    assert [asked.cache_salt for asked in worker.reserves] == [b"tenant"] * 3
    assert all(wire.layout_from_pb(asked.layout).digest == layout.digest for asked in worker.reserves)
    said = [wire.tokens_from_bytes(asked.generated).tolist() for asked in worker.reserves]
    assert said == [[], [], expected(4)]
    assert [asked.prompt_tokens for asked in worker.reserves] == [29, 29, 33]


async def test_a_worker_that_says_it_has_the_whole_prompt_is_not_believed(card: ModelCard) -> None:
    encoder, prefill, decode = tiers(card, "e", "p", "d")
    decode.kv_here = 100_000
    async with serving(card, [encoder, prefill, decode]) as served:
        response = await served.chat([picture(), TEXT], max_tokens=5)
        assert response.status_code == 500
    assert prefill.kv_begins == []
