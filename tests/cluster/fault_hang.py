"""python -m tests.cluster.fault_hang PID THREAD: stops one thread of a process amid its work, until both end.

What is left is a worker whose port, control loop and threads answer as ever, and whose device loop does nothing: no
setting, and nothing in it that is made for tests. The thread goes on if this process ends first.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

_SAMPLE_SECONDS = 1.5
_TRIES = 20
_STOP_SECONDS = 10.0
_STEP_SECONDS = 0.003  # a little less than a thread computes in one go

_SEIZE, _INTERRUPT, _CONT = 0x4206, 0x4207, 7  # ptrace's, as <sys/ptrace.h> has them
_WALL = 0x40000000
_IN_NO_CALL = "-1"


def hang(pid: int, answers: Callable[[], bool]) -> "subprocess.Popen[str]":
    """The process that keeps the busiest thread of another one stopped; it ends with that one, or when it is killed.

    answers: whether the other one still does. Where the thread was stopped with Python's lock in its hands it does
    not, and is let go on. Raises TimeoutError where that is always so.
    """
    for _ in range(_TRIES):
        command = [sys.executable, "-m", "tests.cluster.fault_hang", str(pid), str(_busiest(pid))]
        tracer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert tracer.stdout is not None
        if tracer.stdout.readline() == "stopped\n" and answers():
            return tracer
        tracer.kill()
        tracer.wait(_STOP_SECONDS)
    raise TimeoutError(f"no thread of {pid} could be stopped alone")


def _busiest(pid: int) -> int:
    """The thread that has used most of a processor for a while."""
    before = _ticks(pid)
    time.sleep(_SAMPLE_SECONDS)
    return max(((count - before.get(thread, 0), thread) for thread, count in _ticks(pid).items()))[1]


def _ticks(pid: int) -> dict[int, int]:
    found = {}
    for folder in Path(f"/proc/{pid}/task").iterdir():
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        found[int(folder.name)] = int(fields[11]) + int(fields[12])
    return found


def _keep_stopped(pid: int, thread: int) -> None:
    """Returns when the thread has ended."""
    _ptrace(_SEIZE, thread)
    while True:
        _ptrace(_INTERRUPT, thread)
        _, status = os.waitpid(thread, _WALL)
        if not os.WIFSTOPPED(status):
            return
        # One that waits has nothing to do, and would not be missed.
        if Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()[0] == _IN_NO_CALL:
            break
        _ptrace(_CONT, thread)
        time.sleep(_STEP_SECONDS)
    print("stopped", flush=True)
    os.waitpid(thread, _WALL)


def _ptrace(request: int, thread: int) -> None:
    """Raises OSError."""
    if _LIBC.ptrace(request, thread, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = [ctypes.c_long] * 4
_LIBC.ptrace.restype = ctypes.c_long


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    _keep_stopped(int(sys.argv[1]), int(sys.argv[2]))
