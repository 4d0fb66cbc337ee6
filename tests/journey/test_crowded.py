"""A cluster with KV blocks for a third of what is asked of it answers greedily as generate does, and keeps nothing."""

from functools import partial
from pathlib import Path

import pytest

from tests.journey.clusters import Answer, Running, Variation
from tests.journey.conversations import conversations
from tests.reference import Reference, compare
from triptych.journey import Role

TOKENS = 96
AT_ONCE = 12
KV_BLOCKS = 40  # prompts of about 40 tokens and their answers come to nine blocks each, so twelve of them to 108

# Without host memory whoever makes room is ended, and the router goes on with it; with it, it is brought back.
ENDED = Variation("e+p+d", kv_blocks=KV_BLOCKS, margin_tokens=1, swap_blocks=0)
SWAPPED = Variation("epd", kv_blocks=KV_BLOCKS, margin_tokens=1, swap_blocks=1000)
PAIR = Variation("e+pd", prefills=2, kv_blocks=KV_BLOCKS)
LARGE_TOKENS = KV_BLOCKS * 16 * 6 // 10


@pytest.mark.parametrize("cluster", [ENDED, SWAPPED], indirect=True, ids=str)
def test_three_times_what_fits_gets_the_tokens_of_generate(
    cluster: Running, checkpoint_folders: dict[str, Path]
) -> None:
    reference = Reference(checkpoint_folders["random"])
    asked = [*conversations(0), *conversations(1), *conversations(2)][:AT_ONCE]
    replies: list[list[Answer]] = cluster.together([partial(cluster.answers, c.messages, TOKENS) for c in asked])
    needed = sum(-(-(reply.prompt_tokens + TOKENS) // 16) for (reply,) in replies)
    assert needed >= 3 * KV_BLOCKS, "three times what there is, or it proves too little"
    ties = 0
    for conversation, (reply,) in zip(asked, replies, strict=True):
        wanted = reference.generate(conversation.messages, conversation.pictures, TOKENS)
        assert reply.prompt_tokens == len(wanted.prompt_ids), conversation.name
        assert len(reply.token_ids) == TOKENS
        ties += compare(wanted, reply.token_ids, reply.logprobs).near_tie
    assert ties <= AT_ONCE * TOKENS / 1000
    made_room = {kind: cluster.gauge(f"preemptions_{kind}_total", Role.DECODE) for kind in ("swapped", "ended")}
    assert (made_room["swapped"] > 0) == (cluster.variation.swap_blocks > 0)
    assert (made_room["ended"] > 0) == (cluster.variation.swap_blocks == 0)
    cluster.seconds_until_idle(5.0)
    for name in ("kv", "swap"):
        free, whole = {"kv": ("kv_free_blocks", "kv_blocks"), "swap": ("swap_free_bytes", "swap_bytes")}[name]
        assert cluster.gauge(free, Role.DECODE) == cluster.gauge(whole, Role.DECODE)


@pytest.mark.parametrize("cluster", [PAIR], indirect=True, ids=str)
def test_prompts_of_more_than_half_of_a_worker_never_wait_for_one_another(cluster: Running) -> None:
    sizes = [LARGE_TOKENS if number % 3 else LARGE_TOKENS // 4 for number in range(AT_ONCE)]
    asked = [{"role": "user", "content": f"{number:02}" + "x" * size} for number, size in enumerate(sizes)]
    replies: list[list[Answer]] = cluster.together([partial(cluster.answers, [message], 8) for message in asked])
    assert max(reply.prompt_tokens for (reply,) in replies) >= LARGE_TOKENS
    cluster.seconds_until_idle(5.0)
