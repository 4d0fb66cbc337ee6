"""What goes wrong, how often, and where it has gone wrong so far."""

from collections import Counter
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Rates:
    """Chances, each per occasion: a message sent, a copy begun, a step a process does."""

    drop: float = 0.006
    duplicate: float = 0.02
    delay: float = 0.008  # a message takes up to `longest_delay`
    straggle: float = (
        0.01  # a stream stands still: what is cancelled goes on elsewhere, refs come when their lease is over
    )
    reorder: float = 0.03  # others overtake it
    isolate: float = 0.0002  # nothing comes to or from the process for up to `longest_pause`
    corrupt: float = 0.01  # a bit of a copy turns on its way
    lose: float = 0.005  # a copy fails with an error
    linger: float = 0.03  # a copy rests in the middle, up to `longest_pause`
    stall: float = 0.0003  # a device does nothing for a while, but for copies that are under way
    dawdle: float = 0.0  # a kernel takes up to 0.3 s
    kill: float = 0.0004
    pause: float = 0.0006
    leave: float = 0.08  # a client goes away
    longest_delay: float = 4.0
    longest_pause: float = 9.0


MILD = Rates()
ROUGH = Rates(leave=0.3, straggle=0.1, linger=0.15, isolate=0.0008, delay=0.03, reorder=0.08, kill=0.001, corrupt=0.02)
# Claims end under readers who notice nothing: stopped, cut off, or with a copy that takes longer than its lease.
SLOW = Rates(drop=0.002, dawdle=0.1, straggle=0.5, linger=0.15, pause=0.0004, isolate=0.0004, kill=0.0002, leave=0.05)
NONE = Rates(**dict.fromkeys(Rates.__slots__, 0.0))

_SELDOM = 250  # a step is, when it makes up less than one in so many
_SELDOM_LIKELIER = 20


class Faults:
    """Decides by its seed; `stop` ends all trouble."""

    def __init__(self, random: Random, rates: Rates) -> None:
        self.rates = rates
        self.seen: Counter[tuple[str, str]] = Counter()  # (fault, protocol step)
        self._random = random
        self._occasions: Counter[str] = Counter()  # for faults of processes, by protocol step
        self._all_occasions = 0

    def stop(self) -> None:
        self.rates = NONE

    def strikes(self, fault: str, step: str) -> bool:
        """Whether it does, here and now."""
        return self._strikes(fault, step, getattr(self.rates, fault))

    def strikes_process(self, fault: str, step: str) -> bool:
        """As `strikes`, and likelier at steps that are seldom done, so that each has its turn."""
        self._occasions[step] += 1
        self._all_occasions += 1
        chance = getattr(self.rates, fault)
        is_seldom = self._occasions[step] * _SELDOM < self._all_occasions
        return self._strikes(fault, step, chance * _SELDOM_LIKELIER if is_seldom else chance)

    def _strikes(self, fault: str, step: str, chance: float) -> bool:
        if not chance or self._random.random() >= chance:
            return False
        self.seen[fault, step] += 1
        return True

    def delay_seconds(self) -> float:
        return self._random.uniform(0.05, self.rates.longest_delay)

    def pause_seconds(self) -> float:
        return self._random.uniform(0.1, self.rates.longest_pause)
