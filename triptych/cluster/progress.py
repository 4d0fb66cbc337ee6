"""How far a worker is that loads, and whether it still goes on."""

import contextlib
from dataclasses import dataclass

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
    process = psutil.Process()
    times = process.cpu_times()
    work = times.user + times.system + times.children_user + times.children_system
    with contextlib.suppress(psutil.Error, OSError):  # what is read may be nobody's business here
        work += process.io_counters().read_bytes / _BYTES_PER_SECOND
    return float(work)


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

    @property
    def is_there(self) -> bool:
        return self._since is not None

    def silent_seconds(self, now: float) -> float:
        """For which it has not gone on; 0 for one that waits for its place."""
        return now - self._since if self._since is not None else 0.0
