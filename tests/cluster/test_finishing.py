"""A process that gets a SIGTERM while it has something to do."""

import signal
import subprocess
import sys

import pytest

WAIT_SECONDS = 30.0  # a liveness bound

WORKER = """
import sys, threading
from triptych.cluster.finishing import finish_on_sigterm

looks = 0

def drain():
    global looks
    looks += 1
    return looks > int(sys.argv[1])

finish_on_sigterm(drain, lambda: print("stopped after", looks > int(sys.argv[1]), flush=True), float(sys.argv[2]))
print("ready", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("looks", "seconds", "told"), [(5, 60.0, "stopped after True"), (9999, 1.0, "stopped after False")]
)
def test_it_ends_once_nothing_is_left_or_its_time_is_up(looks: int, seconds: float, told: str) -> None:
    command = [sys.executable, "-c", WORKER, str(looks), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == f"{told}\n"
        assert process.wait(WAIT_SECONDS) == 0


def test_it_ends_though_it_cannot_say_whether_anything_is_left_nor_stop_in_order() -> None:
    worker = WORKER.replace("    looks += 1\n", "    looks += 1\n    if looks < 3: raise TimeoutError\n")
    worker = worker.replace("lambda: print(", "lambda: 1 / print(")
    with subprocess.Popen([sys.executable, "-c", worker, "5", "60.0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopped after True\n"
        try:
            assert process.wait(WAIT_SECONDS) == 0
        finally:
            process.kill()


def test_it_ends_though_stopping_hangs() -> None:
    worker = "from triptych.cluster import finishing\nfinishing.STOP_SECONDS = 0.5\n" + WORKER
    worker = worker.replace("lambda: print(", "lambda: threading.Event().wait() or print(")
    with subprocess.Popen([sys.executable, "-c", worker, "0", "60.0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(WAIT_SECONDS) == 1
        finally:
            process.kill()


def test_a_second_signal_ends_it_at_once() -> None:
    command = [
        sys.executable,
        "-c",
        WORKER.replace("looks += 1", "looks += 1; print('looks', flush=True)"),
        "9999",
        "600",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "looks\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == -signal.SIGTERM
