"""Thousands of random steps at three times the blocks that there are: every rule holds on every step, no KV is lost, no
token comes twice or is missing, everybody ends, and nothing is left over."""

import random

import pytest

from tests.engine.books import scheduler
from tests.engine.crowd import Crowd

NUM_BLOCKS = 60  # about 20 blocks is what a request may come to, and 24 are there at once


def crowd(seed: int, num_slots: int, pipelined: bool, **changes: float) -> Crowd:
    rng = random.Random(seed)
    books = scheduler(
        num_blocks=NUM_BLOCKS,
        max_sequences=rng.choice([3, 8, 24]),
        margin_tokens=rng.choice([0, 1, 8]),
        num_swap_slots=num_slots,
        block_bytes=1,
    )
    return Crowd(rng, books, pipelined, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("pipelined", [False, True], ids=["plain", "pipelined"])
@pytest.mark.parametrize("num_slots", [0, 12, 500])
@pytest.mark.parametrize("seed", range(2))
def test_a_crowd_three_times_too_large_is_served_to_the_last_token(seed: int, num_slots: int, pipelined: bool) -> None:
    visitors = crowd(seed, num_slots, pipelined)
    visitors.run(800)
    gauges = visitors.books.gauges()
    assert visitors.seen["finished"] > 80
    assert gauges["swapped_out_bytes_total"] == visitors.seen["swapped out"]
    assert gauges["swapped_in_bytes_total"] == visitors.seen["swapped in"]
    assert gauges["preemptions_ended_total"] == visitors.seen["ended"]
    assert gauges["preempted_sequences"] == 0
    made_room = gauges["preemptions_swapped_total"] + gauges["preemptions_ended_total"]
    assert made_room > 3, "somebody must make room, or it proves nothing"


@pytest.mark.parametrize("seed", range(3))
def test_priorities_and_departures_spoil_nothing(seed: int) -> None:
    visitors = crowd(100 + seed, num_slots=20, pipelined=bool(seed % 2), urgent=0.4, departures=0.1)
    visitors.run(800)
    assert visitors.seen["finished"] > 50
