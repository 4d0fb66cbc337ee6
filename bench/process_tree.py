"""A command with all processes that it starts: held still, set going again, its CPU time read. Linux only."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO

from bench.server import cpu_seconds

_STOP_SECONDS = 30.0


class ProcessTree:
    """Runs when the block begins, gone when it ends."""

    def __init__(
        self, command: Sequence[str], log: IO[str], environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """log: takes what it prints; environment: on top of ours"""
        self._command = list(command)
        self._log = log
        self._environment = os.environ | environment
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "ProcessTree":
        self._process = subprocess.Popen(
            self._command, stdout=self._log, stderr=subprocess.STDOUT, text=True, env=self._environment
        )
        return self

    def __exit__(self, *_: object) -> None:
        """Asks with SIGINT, as at a terminal; kills what is left after half a minute."""
        assert self._process is not None
        self.go_on()
        known = self.pids()
        if self.runs:
            self._process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        for pid in (pid for pid in known if is_alive(pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def pids(self) -> list[int]:
        """The command's process and all below it."""
        assert self._process is not None
        return descendants(self._process.pid)

    def hold(self) -> None:
        """Nothing of it runs until `go_on`. What is started while the signals go out is held as well."""
        held: set[int] = set()
        while new := set(self.pids()) - held:
            _signal_all(new, signal.SIGSTOP)
            held |= new

    def go_on(self) -> None:
        _signal_all(self.pids(), signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """Of all its processes that are there; steps of 1/100 s each."""
        return sum(_cpu_seconds_of(self.pids()))


def descendants(pid: int) -> list[int]:
    """The process and all below it, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def is_alive(pid: int) -> bool:
    """Whether the process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _cpu_seconds_of(pids: Sequence[int]) -> Iterator[float]:
    for pid in pids:
        with contextlib.suppress(OSError):
            yield cpu_seconds(pid)


def _signal_all(pids: "Sequence[int] | set[int]", number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
