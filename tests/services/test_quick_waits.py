"""A worker's threads hand the interpreter over quickly: what is set, and that their children have it, too."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from triptych.services.quick_waits import wake_quickly


def slack() -> int:
    """Of this thread, in nanoseconds."""
    return int(Path(f"/proc/{threading.get_native_id()}/timerslack_ns").read_text())


@pytest.fixture
def interval() -> Iterator[None]:
    kept = sys.getswitchinterval()
    yield
    sys.setswitchinterval(kept)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no timer slack")
def test_a_thread_and_those_that_it_starts_wake_without_slack(interval: None) -> None:
    found: list[int] = []

    def child() -> None:
        found.append(slack())

    def parent() -> None:
        wake_quickly()
        thread = threading.Thread(target=child)
        thread.start()
        thread.join()
        found.append(slack())

    thread = threading.Thread(target=parent)
    thread.start()
    thread.join()
    assert found == [1000, 1000]
    assert sys.getswitchinterval() < 5e-3, "a decoding step takes no longer"
