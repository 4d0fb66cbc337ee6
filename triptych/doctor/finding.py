"""What a check has to say, and what it is asked. Values that travel between two processes as JSON."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from triptych.config import Settings, load_settings, settings_as_values


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"  # it runs, but slower, less safely or not everywhere
    FAIL = "fail"  # a server will not start here, or not do what it is asked


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check has seen, and what to do about it; nothing to do where all is well."""

    verdict: Verdict
    seen: str
    advice: str = ""

    def as_json(self) -> dict[str, str]:
        return {"verdict": self.verdict.value, "seen": self.seen, "advice": self.advice}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "Finding":
        return cls(Verdict(told["verdict"]), str(told["seen"]), str(told["advice"]))


def ok(seen: str) -> Finding:
    return Finding(Verdict.OK, seen)


def warn(seen: str, advice: str) -> Finding:
    return Finding(Verdict.WARN, seen, advice)


def fail(seen: str, advice: str) -> Finding:
    return Finding(Verdict.FAIL, seen, advice)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the server that is meant to run here shall do."""

    settings: Settings
    peer: str = ""  # the address of another node's HTTP server; empty: none to compare with

    @property
    def device(self) -> str:
        return self.settings.serve.device

    def as_json(self) -> dict[str, Any]:
        return {"settings": settings_as_values(self.settings), "peer": self.peer}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "Asked":
        return cls(load_settings(environment={}, flags=told["settings"]), told["peer"])


Look = Callable[[Asked], Finding]
