"""`[slo]`: classes of service, with limits, the share of requests that has to be within them, and over how long."""

import re
from dataclasses import dataclass

from triptych.config.checks import require
from triptych.errors import ConfigError

MOST_CLASSES = 16  # each is a label of metrics

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_LONGEST_WINDOW_SECONDS = 90 * 86400.0


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """What one kind of request is promised. A limit of 0 is none.

    tpot_seconds: mean time of an output token behind the first
    target:       share of requests that has to be within every limit; what is left is the error budget
    """

    name: str
    ttft_seconds: float = 0.0
    tpot_seconds: float = 0.0
    e2e_seconds: float = 0.0
    target: float = 0.99
    window_seconds: float = 86400.0

    def __post_init__(self) -> None:
        where = f"slo.classes {self.name!r}:"
        require(bool(_NAME.fullmatch(self.name)), "slo.classes name", self.name, "1 to 32 of a-z 0-9 _ -")
        limits = self.limits
        for name, seconds in limits.items():
            require(0 <= seconds < 86400, f"{where} {name}_seconds", seconds, "0 (no limit) to a day")
        require(any(limits.values()), f"{where} limits", "none", "one of ttft_seconds, tpot_seconds, e2e_seconds")
        require(0 < self.target < 1, f"{where} target", self.target, "a share above 0 and below 1")
        window = self.window_seconds
        require(300 <= window <= _LONGEST_WINDOW_SECONDS, f"{where} window_seconds", window, "5 minutes to 90 days")

    @property
    def limits(self) -> dict[str, float]:
        """Seconds by name; 0: no such limit."""
        return {"ttft": self.ttft_seconds, "tpot": self.tpot_seconds, "e2e": self.e2e_seconds}

    def missed(self, ttft: float, tpot: float, e2e: float) -> list[str]:
        """Limits that a request with these seconds is beyond."""
        seconds = {"ttft": ttft, "tpot": tpot, "e2e": e2e}
        return [name for name, limit in self.limits.items() if limit and seconds[name] > limit]


INTERACTIVE = ServiceClass("interactive", ttft_seconds=2.0, tpot_seconds=0.1, e2e_seconds=60.0, target=0.99)
BATCH = ServiceClass("batch", e2e_seconds=600.0, target=0.95)


@dataclass(frozen=True, slots=True)
class SLOSettings:
    """classes: a table `[[slo.classes]]` each; the file's take the place of the default ones.

    default: of requests whose header and key name none
    """

    default: str = "interactive"
    classes: tuple[ServiceClass, ...] = (INTERACTIVE, BATCH)

    def __post_init__(self) -> None:
        names = [each.name for each in self.classes]
        require(0 < len(names) <= MOST_CLASSES, "slo.classes", f"{len(names)} tables", f"1 to {MOST_CLASSES}")
        for name in names:
            require(names.count(name) == 1, "slo.classes", name, "every name once")
        require(self.default in names, "slo.default", self.default, "one of " + ", ".join(names))

    def of(self, name: str) -> ServiceClass:
        """The class of that name. Raises ConfigError, naming those there are."""
        for each in self.classes:
            if each.name == name:
                return each
        names = ", ".join(each.name for each in self.classes)
        raise ConfigError(f"the class of service {name[:40]!r} is not one of {names}")
