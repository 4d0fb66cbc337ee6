"""What goes wrong, how often, and where it has gone wrong so far."""

from collections import Counter
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Rates:
    """Chances, each per occasion: a message sent, a copy begun, a step a process does."""

    drop: float = 0.01
    duplicate: float = 0.02
    delay: float = 0.02  # a message takes up to `longest_delay`, and others overtake it
    corrupt: float = 0.01  # a byte of a copy turns on its way
    lose: float = 0.005  # a copy fails with an error
    stall: float = 0.0004  # a device does nothing for a while, copies that are under way included
    kill: float = 0.0006
    pause: float = 0.0008
    leave: float = 0.03  # a client goes away
    longest_delay: float = 4.0
    longest_pause: float = 9.0


NONE = Rates(0, 0, 0, 0, 0, 0, 0, 0, 0)


class Faults:
    """Decides by its seed; `stop` ends all trouble."""

    def __init__(self, random: Random, rates: Rates) -> None:
        self.rates = rates
        self.seen: Counter[tuple[str, str]] = Counter()  # (fault, protocol step)
        self._random = random

    def stop(self) -> None:
        self.rates = NONE

    def strikes(self, fault: str, step: str) -> bool:
        chance = getattr(self.rates, fault)
        if not chance or self._random.random() >= chance:
            return False
        self.seen[fault, step] += 1
        return True

    def delay_seconds(self) -> float:
        return self._random.uniform(0.05, self.rates.longest_delay)

    def pause_seconds(self) -> float:
        return self._random.uniform(0.1, self.rates.longest_pause)
