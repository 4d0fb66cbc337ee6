"""The tightest free range is found however many there are, and arenas do not go to pieces."""

import random

import pytest

from triptych.engine.extents import Extents
from triptych.engine.free_sizes import FreeSizes


@pytest.mark.parametrize("largest", [1, 63, 64, 4095, 4096, 300_000])
def test_the_tightest_range_is_what_a_search_finds(largest: int) -> None:
    chance, sizes, there = random.Random(largest), FreeSizes(largest), dict[int, int]()
    for start in range(600):
        if there and chance.random() < 0.45:
            gone = chance.choice(list(there))
            sizes.drop(there.pop(gone), gone)
        else:
            there[start] = chance.choice(
                [1, largest, chance.randint(1, largest), min(largest, 1 << chance.randint(0, 18))]
            )
            sizes.add(there[start], start)
        wanted = chance.randint(0, largest)
        tightest = min((size for size in there.values() if size >= wanted), default=None)
        found = sizes.tightest(wanted)
        assert (found and found[0]) == tightest
        assert found is None or there[found[1]] == found[0]
        assert sizes.largest == max(there.values(), default=0)
        assert sizes.items() == sorted((size, start) for start, size in there.items())
        sizes.check()


def test_what_is_larger_than_any_range_could_be_is_not_there() -> None:
    sizes = FreeSizes(64)
    sizes.add(64, 0)
    assert sizes.tightest(64) == (64, 0)
    assert sizes.tightest(65) is None
    assert sizes.tightest(10_000) is None


def test_a_range_that_is_not_there_cannot_be_dropped() -> None:
    sizes = FreeSizes(64)
    sizes.add(5, 0)
    for size, start in ((6, 0), (5, 1)):
        with pytest.raises(KeyError):
            sizes.drop(size, start)


@pytest.mark.parametrize(("units", "steps"), [(63, 1), (4095, 2), (262_143, 3), (16_777_215, 4)])
def test_a_search_takes_a_step_for_each_factor_of_64(units: int, steps: int) -> None:
    """Reserving and releasing are as quick in a large and broken arena as in a small one."""
    assert len(FreeSizes(units)._levels) == steps


@pytest.mark.parametrize("seed", range(3))
def test_ten_thousand_reserves_leave_room_in_one_piece(seed: int) -> None:
    """Items of an encoder, from a thumbnail to the largest, coming and going at four fifths of the arena.

    Fragmentation is bounded by what lives: whoever needs more than the longest run evicts what lies around it, and with
    everything released there is one run again.
    """
    chance, arena, largest = random.Random(seed), Extents(2048), 76
    living: list[int] = []
    refused = reserves = 0
    while reserves < 10_000:
        if living and arena.num_free_units < 0.2 * arena.num_units:
            arena.release(living.pop(chance.randrange(len(living))))
            continue
        reserves += 1
        start = arena.reserve(min(largest, int(chance.paretovariate(0.8)) + 1))
        if start is None:
            refused += 1
        else:
            living.append(start)
        assert 0 <= arena.fragmentation < 1
        if reserves % 500 == 0:
            arena.check()
    assert refused <= 0.04 * reserves, f"{refused} of {reserves} found no room, with a fifth of the arena free"
    for start in living:
        arena.release(start)
    assert arena.largest_free == arena.num_units
    assert arena.fragmentation == 0.0
