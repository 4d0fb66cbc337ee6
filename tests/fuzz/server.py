"""The process that is fuzzed: prints where it listens, ends with its standard input."""

import asyncio
import sys

import uvloop

from tests.checkpoints import EMBEDDED
from tests.router.serving import serving, tiers
from triptych.models.card import load_card

ANSWER_TOKENS = 4


async def main() -> None:
    card = load_card(str(EMBEDDED), "float32")
    workers = tiers(card, "e", "p", "d")
    for worker in workers:
        worker.finish_at = ANSWER_TOKENS
    # No name is ever looked up: what a URL leads to is other tests' concern.
    async with serving(card, workers, allow_media_hosts=("none.invalid",), max_images_per_prompt=8) as served:
        print(served.base_url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    # As in production.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
