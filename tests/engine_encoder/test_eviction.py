"""The cheapest neighbours to clear, against trying all of them."""

import math
import random

from triptych.engine.eviction import Occupied, cheapest_window


def test_nothing_goes_where_a_hole_is_large_enough() -> None:
    assert cheapest_window([Occupied(0, 10, 1.0), Occupied(20, 30, 2.0)], 30, 10) == range(1, 1)


def test_the_oldest_range_goes_when_it_is_enough() -> None:
    occupied = [Occupied(0, 10, 5.0), Occupied(10, 20, 1.0), Occupied(20, 30, 3.0)]
    assert cheapest_window(occupied, 30, 10) == range(1, 2)


def test_old_ranges_that_would_not_help_are_spared() -> None:
    occupied = [Occupied(0, 10, 1.0), Occupied(10, 20, 9.0), Occupied(20, 30, 2.0), Occupied(30, 40, 3.0)]
    assert cheapest_window(occupied, 40, 20) == range(2, 4)


def test_immovable_ranges_are_never_cleared() -> None:
    occupied = [Occupied(0, 10, 1.0), Occupied(10, 20, math.inf), Occupied(20, 30, 2.0)]
    assert cheapest_window(occupied, 30, 11) is None
    assert cheapest_window(occupied, 30, 10) == range(1)


def test_an_arena_that_is_too_small_has_no_window() -> None:
    assert cheapest_window([], 9, 10) is None
    assert cheapest_window([Occupied(0, 9, 0.0)], 9, 10) is None


def test_it_is_the_best_of_all_windows_in_random_arenas() -> None:
    chance = random.Random(11)
    for _ in range(1500):
        occupied, num_units = _random_arena(chance)
        wanted = chance.randint(1, num_units + 2)
        window = cheapest_window(occupied, num_units, wanted)
        assert (_value(occupied, window) if window is not None else None) == _best(occupied, num_units, wanted)
        if window is not None:
            assert _room(occupied, num_units, window) >= wanted


def _random_arena(chance: random.Random) -> tuple[list[Occupied], int]:
    occupied, position = [], 0
    for _ in range(chance.randint(0, 9)):
        start = position + chance.choice((0, 0, 1, 3))
        position = start + chance.randint(1, 6)
        cost = math.inf if chance.random() < 0.2 else float(chance.randint(0, 5))
        occupied.append(Occupied(start, position, cost))
    return occupied, position + chance.choice((0, 2)) or 1


def _best(occupied: list[Occupied], num_units: int, wanted: int) -> tuple[float, float] | None:
    values = [
        _value(occupied, window)
        for first in range(len(occupied) + 1)
        for last in range(first, len(occupied) + 1)
        if _room(occupied, num_units, window := range(first, last)) >= wanted
    ]
    return min((value for value in values if value[0] < math.inf), default=None)


def _value(occupied: list[Occupied], window: range) -> tuple[float, float]:
    costs = [occupied[index].cost for index in window]
    return max(costs, default=0.0), sum(costs)


def _room(occupied: list[Occupied], num_units: int, window: range) -> int:
    begin = occupied[window.start - 1].end if window.start else 0
    end = occupied[window.stop].start if window.stop < len(occupied) else num_units
    return end - begin
