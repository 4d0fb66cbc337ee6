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


@pytest.mark.parametrize("seed", [1000, 1001, 1002, 1062, 1111, 1249])
def test_the_tightest_pools_serve_everybody_too(seed: int) -> None:
    """Of the kind in which two once kept for each other, on the device, what neither could go on with."""
    rng = random.Random(seed)
    books = scheduler(
        num_blocks=rng.choice([20, 24, 40, 60]),
        max_sequences=rng.choice([1, 2, 3, 8, 24]),
        margin_tokens=rng.choice([0, 1, 4, 8, 30]),
        num_swap_slots=rng.choice([0, 1, 3, 12, 50, 500]),
        block_bytes=1,
    )
    pipelined = rng.random() < 0.5
    visitors = Crowd(
        rng,
        books,
        pipelined,
        most=rng.choice([6, 24, 40]),
        several=rng.choice([0, 0.15, 0.6]),
        urgent=rng.choice([0, 0.4]),
        departures=rng.choice([0, 0.01, 0.1]),
    )
    visitors.run(300)
    assert visitors.seen["finished"] > 20
