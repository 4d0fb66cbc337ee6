"""What processes were seen to hold, over a while: its trends, and what of it grew."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from tests.soak.flat import Trend, trend
from tests.soak.sampling import LIMITS, children, sample, sample_host

HOST = "host"


@dataclass
class Samples:
    """When each was taken, and what it found by process and quantity."""

    at: list[float] = field(default_factory=list)
    found: list[Mapping[tuple[str, str], float]] = field(default_factory=list)

    def add(self, seconds: float, pids: Mapping[str, int]) -> None:
        """Of these processes, what they have started, and the host."""
        samples = {name: sample(pid) for name, pid in pids.items()} | {HOST: sample_host()}
        for name, pid in pids.items():
            samples |= {f"{name}'s child {at}": sample(child) for at, child in enumerate(children(pid))}
        self.at.append(seconds)
        self.found.append({(name, kind): value for name, each in samples.items() for kind, value in each.items()})

    def since(self, seconds: float) -> Self:
        """Those that were not taken earlier."""
        first = sum(at < seconds for at in self.at)
        return type(self)(self.at[first:], self.found[first:])

    def until(self, count: int) -> Self:
        """So many, from the first."""
        return type(self)(self.at[:count], self.found[:count])

    def trends(self) -> dict[tuple[str, str], Trend]:
        """Of what every sample has: a child that was replaced meanwhile may have been missed by one."""
        common = set.intersection(*(set(each) for each in self.found))
        return {key: trend(self.at, [each[key] for each in self.found]) for key in common}

    def grew(self, share: float = 1.0) -> list[str]:
        """What grew by more than this share of what a whole run allows, in words."""
        return [
            f"{name}: {quantity} grew by {found.growth:.3g} {LIMITS[quantity].unit} "
            f"from {found.first:.5g} to {found.last:.5g}, noise {found.noise:.2g}, "
            f"allowed {share * LIMITS[quantity].allowed:g}"
            for (name, quantity), found in sorted(self.trends().items())
            if found.grows(share * LIMITS[quantity].allowed)
        ]
