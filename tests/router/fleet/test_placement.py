"""Placement is arithmetic: each test gives columns and expects rows."""

import time

import numpy as np
import pytest

from triptych.errors import NoWorker
from triptych.journey import Role
from triptych.router.fleet.placement import RoleColumns, Snapshot, place_items, place_prompt, place_stream

LIMITS = np.full(1000, 16_384.0)


def columns(
    reported: list[float],
    booked: list[float] | None = None,
    ready: list[bool] | None = None,
    room: float = np.inf,
) -> RoleColumns:
    count = len(reported)
    return RoleColumns(
        ready=np.array(ready if ready is not None else [True] * count),
        reported=np.array(reported, dtype=np.float64),
        booked=np.array(booked or [0.0] * count, dtype=np.float64),
        room=np.full(count, room),
    )


def test_each_item_goes_to_the_encoder_with_the_least_queued_tokens() -> None:
    assert place_items(columns([300, 100, 200]), [50]) == [1]


def test_items_of_one_request_spread_over_equally_idle_encoders() -> None:
    assert place_items(columns([0, 0, 0]), [10, 10, 10, 10]) == [0, 1, 2, 0]


def test_an_item_counts_what_this_very_call_has_placed() -> None:
    assert place_items(columns([0, 50]), [100, 10, 30, 1]) == [0, 1, 1, 1]


def test_placing_changes_no_column() -> None:
    before = columns([0, 50], booked=[1, 2])
    place_items(before, [100, 10])
    assert before.reported.tolist() == [0, 50]
    assert before.booked.tolist() == [1, 2]


def test_what_the_router_has_booked_counts_on_top_of_the_report() -> None:
    assert place_prompt(columns([0, 10], booked=[20, 0])) == 1


def test_equally_loaded_workers_are_taken_by_id() -> None:
    assert place_prompt(columns([7, 7, 7])) == 0
    assert place_stream(columns([7, 7, 7], room=100)) == 0


def test_workers_that_are_not_ready_get_nothing() -> None:
    assert place_prompt(columns([0, 900], ready=[False, True])) == 1
    assert place_items(columns([0, 900], ready=[False, True]), [1, 1]) == [1, 1]


def test_a_stream_goes_where_most_blocks_are_free() -> None:
    full = columns([90, 20, 50], booked=[0, 50, 0], room=100)
    assert place_stream(full) == 2


def test_a_worker_to_be_avoided_is_used_when_it_is_the_only_one() -> None:
    assert place_prompt(columns([0, 900]), avoid=[0]) == 1
    assert place_prompt(columns([0, 900], ready=[True, False]), avoid=[0]) == 0


def test_an_item_goes_where_it_fits_however_busy() -> None:
    limits = np.array([100.0, np.inf, 200.0])
    assert place_items(columns([0, 9000, 500]), [150, 100, 150, 300], limits=limits) == [2, 0, 2, 1]


def test_an_encoder_to_be_avoided_is_used_for_what_no_other_takes() -> None:
    limits = np.array([100.0, 5000.0])
    assert place_items(columns([0, 0]), [50, 3000], avoid=[1], limits=limits) == [0, 1]


def test_an_item_that_no_ready_encoder_takes_is_an_error_with_its_size() -> None:
    limits = np.array([100.0, 5000.0])
    with pytest.raises(NoWorker, match="no encode worker that is ready takes an item of 3000 encoder tokens"):
        place_items(columns([0, 0], ready=[True, False]), [3000], limits=limits)


def test_no_ready_worker_is_an_error_that_names_the_role() -> None:
    with pytest.raises(NoWorker, match="decode"):
        place_stream(columns([0], ready=[False], room=10))
    with pytest.raises(NoWorker, match="encode"):
        place_items(columns([]), [1])


def test_rows_are_in_the_order_of_ids() -> None:
    snapshot = Snapshot.of(["w2", "w10", "w1"])
    assert snapshot.worker_ids == ("w1", "w10", "w2")
    assert set(snapshot.roles) == set(Role)


@pytest.mark.parametrize("seed", range(5))
def test_greedy_placement_is_never_worse_than_one_item_above_the_mean(seed: int) -> None:
    rng = np.random.default_rng(seed)
    encoders, items = int(rng.integers(1, 20)), rng.integers(1, 5000, size=int(rng.integers(1, 60))).tolist()
    load = np.zeros(encoders)
    for row, tokens in zip(place_items(columns([0.0] * encoders), items), items, strict=True):
        load[row] += tokens
    assert load.max() <= sum(items) / encoders + max(items)


def test_a_decision_at_a_thousand_workers_is_a_matter_of_microseconds() -> None:
    rng = np.random.default_rng(0)
    thousand = columns(rng.integers(0, 10_000, size=1000).tolist(), room=20_000)
    best = min(_seconds_for_three_decisions(thousand) for _ in range(200))
    assert best < 150e-6  # three decisions, 50 µs each


def _seconds_for_three_decisions(thousand: RoleColumns) -> float:
    began = time.perf_counter()
    place_items(thousand, [1280], limits=LIMITS)
    place_prompt(thousand)
    place_stream(thousand)
    return time.perf_counter() - began
