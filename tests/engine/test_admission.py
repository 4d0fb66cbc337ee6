"""Admission: who gets room now, and why nobody waits for ever."""

import random
from collections import deque

import pytest

from triptych.engine.admission import Need, admit


def test_everybody_who_fits_is_admitted() -> None:
    assert admit([Need(1, 10), Need(2, 0), Need(0, 5)], Need(3, 15)) == [0, 1, 2]


def test_a_need_is_met_whole_or_not_at_all() -> None:
    assert admit([Need(2, 11)], Need(2, 10)) == []
    assert admit([Need(3, 10)], Need(2, 10)) == []


def test_nobody_overtakes_in_the_queue_for_blocks() -> None:
    assert admit([Need(5, 0), Need(1, 0)], Need(4, 0)) == []


def test_nobody_overtakes_in_the_queue_for_landing_memory() -> None:
    assert admit([Need(0, 5), Need(0, 1)], Need(9, 4)) == []


def test_a_prompt_with_reserved_blocks_passes_those_that_wait_for_blocks() -> None:
    assert admit([Need(5, 3), Need(0, 4)], Need(4, 4)) == [1]


def test_waiting_for_landing_memory_keeps_the_place_in_the_queue_for_blocks() -> None:
    assert admit([Need(2, 9), Need(2, 0)], Need(2, 4)) == []


def test_a_text_prompt_with_reserved_blocks_waits_for_nobody() -> None:
    assert admit([Need(0, 9), Need(9, 0), Need(0, 0)], Need(4, 4)) == [2]


@pytest.mark.parametrize("seed", range(20))
def test_everybody_gets_a_turn_though_prompts_need_what_reservations_hold(seed: int) -> None:
    """Requests of two kinds over 10 blocks and 10 bytes: a reservation keeps its blocks until its own prompt, which
    queues behind it, has had landing memory; a prompt without one takes both at once. Each ends some turns later."""
    rng = random.Random(seed)
    waiting: deque[tuple[str, Need]] = deque()
    running: list[tuple[int, str, Need]] = []
    served = 0
    free = Need(10, 10)
    for turn in range(3000):
        if turn < 2000 and len(waiting) < 12:
            kind = rng.choice(["reservation", "prompt"])
            waiting.append((kind, Need(rng.randrange(1, 11), 0 if kind == "reservation" else rng.randrange(11))))
        chosen = admit([need for _, need in waiting], free)
        for index in reversed(chosen):
            kind, need = waiting[index]
            del waiting[index]
            free = Need(free.blocks - need.blocks, free.landing_bytes - need.landing_bytes)
            if kind == "reservation":
                waiting.append((f"prompt of {need.blocks}", Need(0, rng.randrange(11))))
            else:
                running.append((turn + rng.randrange(1, 4), kind, need))
        for ended in [entry for entry in running if entry[0] <= turn]:
            running.remove(ended)
            _, kind, need = ended
            reserved = int(kind.removeprefix("prompt of ")) if kind != "prompt" else 0
            free = Need(free.blocks + need.blocks + reserved, free.landing_bytes + need.landing_bytes)
            served += 1
    assert not waiting, f"{len(waiting)} wait for ever, {served} were served"
    assert free == Need(10, 10)
