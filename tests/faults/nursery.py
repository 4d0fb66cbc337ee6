"""Worker processes that start in a fraction of a second: forked from one that has imported everything already.

`Nursery` is the test's side. What it runs is this module itself: it reads one line of JSON per worker, forks, and
answers with the process's number. It ends, and its workers with it, when the test process lets go of its input.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

from triptych.journey import Endpoint

START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Order:
    """One worker to be started.

    arguments:    as triptych.cluster.worker takes them
    output:       the file that gets its `ready` line; errors: its log
    clock_offset: seconds by which this process's wall clock is wrong
    """

    arguments: Sequence[str]
    output: str
    errors: str
    environment: Mapping[str, str] = field(default_factory=dict)
    clock_offset: float = 0.0


class Nursery:
    """The process that workers are forked from. `close` ends it and all of them."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.faults.nursery"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, order: Order) -> int:
        """The number of the new process."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(asdict(order)) + "\n")
        stdin.flush()
        return int(stdout.readline())

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=20)


class Nursling:
    """One worker process; started by the constructor, ready when `endpoint` has returned."""

    def __init__(self, nursery: Nursery, worker_id: str, order: Order) -> None:
        self.worker_id = worker_id
        self._order = order
        Path(order.output).write_text("")
        self.pid = nursery.start(order)

    def endpoint(self) -> Endpoint:
        """Where it listens, waiting until it does. Raises RuntimeError with the end of its log when it does not."""
        deadline = time.monotonic() + START_SECONDS
        while not (line := Path(self._order.output).read_text()).endswith("\n"):
            if not self.alive() or time.monotonic() > deadline:
                raise RuntimeError(f"{self.worker_id} did not start: {self.log()[-2000:]}")
            time.sleep(0.01)
        _, address, incarnation = line.split()
        return Endpoint(address, int(incarnation))

    def alive(self) -> bool:
        """Whether the process is there, running or stopped."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it without warning, and returns when it is gone."""
        if self.alive():
            self.signal(signal.SIGKILL)
        deadline = time.monotonic() + 10
        while self.alive():
            assert time.monotonic() < deadline, f"{self.worker_id} outlives SIGKILL"
            time.sleep(0.002)

    def log(self) -> str:
        return Path(self._order.errors).read_text()


def _serve() -> NoReturn:
    """The nursery process: forks a worker for each line it reads."""
    # Imported here, in this process alone: the tests themselves need none of it.
    import torch

    from triptych.cluster import worker  # noqa: F401  # all that workers import is to be there before they are forked

    torch.set_num_threads(1)  # no thread may live in here: a fork has none but its own
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers; the kernel buries them
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pids: list[int] = []
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become_worker(Order(**json.loads(line)))
        pids.append(pid)
        print(pid, flush=True)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    os._exit(0)  # taking down an interpreter that has imported torch takes seconds


def _become_worker(order: Order) -> NoReturn:
    from triptych.cluster.roles import BUILDERS
    from triptych.services.command import run_worker

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, opened in (
        (0, null),
        (1, os.open(order.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)),
        (2, os.open(order.errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)),
    ):
        os.dup2(opened, number)
        os.close(opened)
    os.environ.update(order.environment)
    if order.clock_offset:
        _set_clock(order.clock_offset)
    sys.argv = ["worker", *order.arguments]
    status = 1
    try:
        run_worker(BUILDERS)
        status = 0
    except BaseException:  # no other word leaves this process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _set_clock(offset: float) -> None:
    """The wall clock of this process is wrong from now on; its monotonic one is not."""
    wall, wall_ns = time.time, time.time_ns
    time.time = lambda: wall() + offset
    time.time_ns = lambda: wall_ns() + int(offset * 1e9)


if __name__ == "__main__":
    _serve()
