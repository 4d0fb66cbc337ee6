"""How far a worker is that loads, and whether it still goes on."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

STALL_SECONDS = 120.0  # in which a load that goes on does something
_LEAST_WORK = 0.05  # for each of them: threads that only wait do a fifth of that
_BYTES_PER_SECOND = 16 << 20  # read from a disk, that count as a second of work


@dataclass(frozen=True, slots=True)
class Progress:
    """stage: what it does; work: seconds of processor time that its process has had, or has read for, in all"""

    stage: str
    work: float


def work_done() -> float:
    """Of this process and those that it has started, in seconds."""
    work = 0.0
    for pid in [os.getpid(), *_descendants(os.getpid())]:
        with contextlib.suppress(psutil.Error):  # it has ended, and its parent has its times
            times = psutil.Process(pid).cpu_times()
            work += times.user + times.system + times.children_user + times.children_system
    with contextlib.suppress(psutil.Error, OSError):  # what is read may be nobody's business here
        work += psutil.Process().io_counters().read_bytes / _BYTES_PER_SECOND
    return float(work)


def _descendants(pid: int) -> list[int]:
    """Those that run: a compiler's time is its parent's only once it has ended."""
    children: list[int] = []
    with contextlib.suppress(OSError):  # it has ended, or this kernel does not tell
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                children += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return children + [each for child in children for each in _descendants(child)]


class Watch:
    """Whether a load goes on: however long it takes, it does something all the time."""

    def __init__(self) -> None:
        self.stage = ""
        self._work = 0.0  # where it last had gone on
        self._since: float | None = None  # None: its process is not known to be there yet

    def began(self, now: float) -> None:
        """Its process is there, whether it has answered or not."""
        if self._since is None:
            self._since = now

    def heard(self, progress: Progress, now: float) -> None:
        went_on = progress.stage != self.stage or progress.work - self._work >= _LEAST_WORK * STALL_SECONDS
        if went_on or self._since is None:
            self.stage, self._work, self._since = progress.stage, progress.work, now

    def excuse(self, now: float) -> None:
        """It could not be heard until now."""
        if self._since is not None:
            self._since = now

    @property
    def is_there(self) -> bool:
        return self._since is not None

    def silent_seconds(self, now: float) -> float:
        """For which it has not gone on; 0 for one that waits for its place."""
        return now - self._since if self._since is not None else 0.0
