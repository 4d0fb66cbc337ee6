"""The stateless generator: uniform, and independent in all three arguments."""

import numpy as np
import pytest

from triptych.engine.randomness import uniform, uniforms


def test_the_numbers_never_change() -> None:
    """Another worker, of another version, must continue the same answer."""
    assert [uniform(*key) for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**64 - 1, 7, 100_000)]] == [
        0.13870941014555416,
        0.6935121390102292,
        0.1838397910074394,
        0.9711020828012882,
        0.3233164791860581,
    ]


@pytest.mark.parametrize("count", [0, 3, 200])
def test_many_numbers_at_once_are_the_same_numbers(count: int) -> None:
    rng = np.random.default_rng(count)
    seeds = [int(seed) * 3 - 2**63 for seed in rng.integers(0, 2**63, count)]
    choices, positions = rng.integers(0, 128, count).tolist(), rng.integers(0, 100_000, count).tolist()
    keys = zip(seeds, choices, positions, strict=True)
    assert uniforms(seeds, choices, positions).tolist() == [uniform(*key) for key in keys]


def test_seeds_count_modulo_two_to_the_64() -> None:
    assert uniform(-1, 0, 0) == uniform(2**64 - 1, 0, 0)
    assert uniform(2**64, 0, 0) == uniform(0, 0, 0)


def test_the_result_lies_in_the_half_open_interval_and_below_any_total() -> None:
    numbers = np.array([uniform(seed, 0, 0) for seed in range(20_000)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    largest = 1 - 2.0**-52
    for total in (1.0, 0.5, 0.75, 1 / 3, 1e-300, np.nextafter(0.5, 1), np.nextafter(1, 0)):
        assert total * largest < total


@pytest.mark.parametrize("axis", ["seed", "choice", "position"])
def test_every_argument_alone_gives_uniform_numbers(axis: str) -> None:
    count, bins = 50_000, 100
    numbers = [uniform(**({"seed": 5, "choice": 0, "position": 3} | {axis: value})) for value in range(count)]
    found, _ = np.histogram(numbers, bins=bins, range=(0, 1))
    expected = count / bins
    chi_squared = float(((found - expected) ** 2 / expected).sum())
    # 99 degrees of freedom: mean 99, deviation 14.1; 4.5 deviations either way.
    assert 36 < chi_squared < 162


@pytest.mark.parametrize("step", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, -1), (0, 1, -1), (1, -1, 0)])
def test_neighbours_are_uncorrelated(step: tuple[int, int, int]) -> None:
    count = 20_000
    keys = np.random.default_rng(0).integers(1, 5000, size=(count, 3))
    here = np.array([uniform(*map(int, key)) for key in keys])
    there = np.array([uniform(*map(int, key + np.array(step))) for key in keys])
    assert abs(np.corrcoef(here, there)[0, 1]) < 4.5 / np.sqrt(count)
    pairs, _, _ = np.histogram2d(here, there, bins=10, range=((0, 1), (0, 1)))
    expected = count / 100
    assert float(((pairs - expected) ** 2 / expected).sum()) < 162


def test_no_two_keys_of_a_busy_day_collide() -> None:
    numbers = {uniform(seed, choice, position) for seed in range(50) for choice in range(8) for position in range(200)}
    assert len(numbers) == 50 * 8 * 200
