"""Checks that hang, crash, talk too much, or leave processes behind; run as the doctor runs its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from triptych.doctor.finding import Asked, Finding, ok


def say_device(asked: Asked) -> Finding:
    return ok(f"{asked.device} {asked.settings.router.port} {asked.peer}")


def hang(asked: Asked) -> Finding:
    print("asking a machine that never answers", flush=True)
    time.sleep(600)
    return ok("never")


def ignore_being_asked(asked: Asked) -> Finding:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
    return ok("never")


def raise_something(asked: Asked) -> Finding:
    raise ZeroDivisionError("a library divided by zero")


def crash(asked: Asked) -> Finding:
    os.kill(os.getpid(), signal.SIGSEGV)
    return ok("never")


def talk(asked: Asked) -> Finding:
    """More than a pipe holds, on both streams, where a finding might be looked for."""
    for stream in (sys.stdout, sys.stderr):
        stream.write('{"verdict": "fail"}\n' * 20_000)
    return ok("talked")


def leave_a_process(asked: Asked) -> Finding:
    """peer: a file for its number."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(asked.peer).write_text(str(child.pid))
    return ok("left one")
