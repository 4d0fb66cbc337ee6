"""Randomness without state: any worker draws the same number for the same token of the same choice."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # odd, near 2**64 / golden ratio: SplitMix64's increment
_MANTISSA_BITS = 52
_FEW = 16  # below which numpy's calls cost more than Python's own arithmetic


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) that is a function of these three alone.

    The state starts as the seed, modulo 2**64, and goes through three rounds of SplitMix64: scramble; jump ahead by
    choice and scramble; jump ahead by position and scramble. To jump is to add the golden increment once more often
    than the argument says. For one seed and choice the positions are thus one SplitMix64 stream, and the choices'
    streams are seeded by another.

    52 bits and not 53, so that for every total t > 0 the product uniform * t rounds below t: a draw by inverse CDF
    never falls off the end.
    """
    state = seed & _MASK
    for jump in (0, choice, position):
        state = _scramble((state + (jump + 1) * _GOLDEN) & _MASK)
    return (state >> (64 - _MANTISSA_BITS)) * 2.0**-_MANTISSA_BITS


def uniforms(seeds: Sequence[int], choices: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """`uniform` of each triple, all at once: [n] float64."""
    if len(seeds) < _FEW:
        return np.array([uniform(*each) for each in zip(seeds, choices, positions, strict=True)], dtype=np.float64)
    state = np.array([seed & _MASK for seed in seeds], dtype=np.uint64)
    for jumps in ((0,), choices, positions):
        state = _scramble_all(state + (np.array(jumps, dtype=np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))
    return (state >> np.uint64(64 - _MANTISSA_BITS)).astype(np.float64) * 2.0**-_MANTISSA_BITS


def _scramble(state: int) -> int:
    """SplitMix64's finaliser: a bijection of 64 bits in which every input bit moves about half of the output bits."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def _scramble_all(states: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`_scramble` of each."""
    states = (states ^ (states >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    states = (states ^ (states >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return states ^ (states >> np.uint64(31))
