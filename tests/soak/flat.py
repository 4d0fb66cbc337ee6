"""Whether a measured quantity stays where it is: its slope against its own noise."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NOISE_FACTOR = 4.0


@dataclass(frozen=True)
class Trend:
    """What a quantity did.

    growth: what its slope adds up to from the first sample to the last
    noise:  spread of single samples about that line, as a standard deviation
    """

    growth: float
    noise: float
    first: float
    last: float

    def grows(self, allowed: float) -> bool:
        """Whether it grew by more than is allowed and more than its noise can make it seem."""
        return self.growth > max(allowed, NOISE_FACTOR * self.noise)


def trend(seconds: Sequence[float], values: Sequence[float]) -> Trend:
    """By the median of the slopes of all pairs (Theil and Sen), which single outliers do not move."""
    at, level = np.array(seconds, np.float64), np.array(values, np.float64)
    left, right = np.triu_indices(len(at), 1)
    slope = float(np.median((level[right] - level[left]) / (at[right] - at[left])))
    rest = level - slope * at
    noise = 1.4826 * float(np.median(np.abs(rest - np.median(rest))))
    return Trend(slope * float(at[-1] - at[0]), noise, float(level[0]), float(level[-1]))
