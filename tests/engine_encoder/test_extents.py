"""Contiguous ranges: best fit, coalescing, and a bookkeeping that never contradicts itself."""

import random

import pytest

from triptych.engine.extents import Extents
from triptych.errors import InvariantViolation


def test_a_range_goes_to_the_tightest_hole() -> None:
    extents = Extents(100)
    first, gap, _ = extents.reserve(10), extents.reserve(5), extents.reserve(10)
    assert (first, gap) == (0, 10)
    extents.release(0)
    extents.release(10)
    extents.reserve(15)  # fills the hole of the two, now one
    assert extents.reserve(60) == 25
    extents.check()


def test_neighbours_become_one_hole_again() -> None:
    extents = Extents(30)
    starts = [extents.reserve(10) for _ in range(3)]
    assert extents.largest_free == 0
    for start in (starts[0], starts[2], starts[1]):
        assert start is not None
        extents.release(start)
        extents.check()
    assert extents.largest_free == 30


def test_what_fits_nowhere_is_refused_and_changes_nothing() -> None:
    extents = Extents(30)
    starts = [extents.reserve(10) for _ in range(3)]
    extents.release(0)
    extents.release(20)
    assert starts == [0, 10, 20]
    assert extents.reserve(11) is None  # 20 are free, but not in a row
    assert extents.num_free_units == 20
    assert extents.fragmentation == 0.5
    extents.check()


def test_room_without_a_range_counts_the_holes_beside_it() -> None:
    extents = Extents(30)
    for _ in range(3):
        extents.reserve(10)
    assert extents.room_without(10) == 10
    extents.release(0)
    assert extents.room_without(10) == 20
    extents.release(20)
    assert extents.room_without(10) == 30


def test_an_unknown_start_is_not_released() -> None:
    extents = Extents(30)
    extents.reserve(10)
    with pytest.raises(InvariantViolation, match="unit 5"):
        extents.release(5)
    extents.release(0)
    with pytest.raises(InvariantViolation):
        extents.release(0)
    extents.check()


@pytest.mark.parametrize("units", [0, -1])
def test_empty_ranges_and_arenas_are_refused(units: int) -> None:
    with pytest.raises(ValueError):
        Extents(units)
    with pytest.raises(ValueError):
        Extents(1).reserve(units)


def test_ten_thousand_random_steps_leave_no_unit_unaccounted_for() -> None:
    chance = random.Random(7)
    extents = Extents(257)
    owner: list[int | None] = [None] * 257  # a plain picture of the arena, to compare with
    for step in range(10_000):
        taken = dict(extents.taken)
        if taken and chance.random() < 0.48:
            start = chance.choice(list(taken))
            assert extents.release(start) == taken[start]
            owner[start : start + taken[start]] = [None] * taken[start]
        else:
            units = chance.choice((1, 2, 3, 8, 21, 64))
            start_or_none = extents.reserve(units)
            holes = _holes(owner)
            assert (start_or_none is None) == all(hole < units for hole in holes)
            if start_or_none is not None:
                assert set(owner[start_or_none : start_or_none + units]) == {None}
                owner[start_or_none : start_or_none + units] = [step] * units
        extents.check()
        assert extents.num_free_units == owner.count(None)
        assert extents.largest_free == max(_holes(owner), default=0)
    for start in list(extents.taken):
        extents.release(start)
    assert extents.largest_free == 257


def _holes(owner: list[int | None]) -> list[int]:
    holes, length = [], 0
    for who in [*owner, -1]:
        if who is None:
            length += 1
        elif length:
            holes.append(length)
            length = 0
    return holes
