"""Where a request that is tried again gets its images' rows from."""

import asyncio

import pytest

from tests.router.loopback import LoopbackWorker
from tests.router.loopback_prefill import token_id
from tests.router.serving import Served, picture, serving, tiers, until
from triptych.models.card import ModelCard

pytestmark = pytest.mark.anyio

NUM_TOKENS = 100
CONTENT = [picture(), {"type": "text", "text": "what?"}]


async def told(served: Served, worker: LoopbackWorker, queued_tokens: int) -> None:
    """Once the router knows that so much waits there."""
    worker.queued_tokens = queued_tokens
    (link,) = [link for link in served.router.fleet.links if link.worker_id == worker.worker_id]
    await until(lambda: link.gauges["encoder_queued_tokens"] == queued_tokens)


@pytest.mark.parametrize("encoder_lives", [True, False])
async def test_rows_are_taken_from_where_they_are_while_that_is_there(card: ModelCard, encoder_lives: bool) -> None:
    first, second, prefill, decode, other = tiers(card, "e", "e", "p", "d", "d")
    other.free_blocks = 10  # so that its neighbour is chosen
    decode.token_pause_seconds = 0.005
    async with serving(card, [first, second, prefill, decode, other]) as served:
        answer = asyncio.create_task(served.ids(CONTENT, max_tokens=NUM_TOKENS))
        await until(lambda: any(entry.startswith("decode") for entry in decode.log))
        if encoder_lives:
            await told(served, first, 100_000)
        else:
            await first.kill()
            (link,) = [link for link in served.router.fleet.links if link.worker_id == first.worker_id]
            await until(lambda: link.state != "ready")
        await decode.kill()
        assert await answer == [token_id(0, position) for position in range(NUM_TOKENS)]
        encoded = [sum(entry.startswith("encode") for entry in each.log) for each in (first, second)]
        assert encoded == ([2, 0] if encoder_lives else [1, 1])
        for each in (decode,) if encoder_lives else (first, decode):
            await each.start()  # whoever ends the test ends all of them
