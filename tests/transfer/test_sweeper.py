import threading
import time
from collections.abc import Callable

import pytest

from triptych.journey import new_request_id
from triptych.transfer.leases import LeaseTable, Sweeper

REQUEST = new_request_id()


def _until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(1e-3)
    return condition()


def test_overdue_claims_end_without_any_traffic() -> None:
    ended = threading.Event()
    first, second = LeaseTable(), LeaseTable()
    second.grant(REQUEST, 0.02, ended.set)
    others = set(threading.enumerate())  # of whatever else this process has run
    sweeper = Sweeper([first, second], interval_seconds=0.005)
    sweeper.start()
    assert {thread.name for thread in set(threading.enumerate()) - others} == {"lease-sweeper"}
    assert ended.wait(5)
    assert sweeper.stop()
    assert _until(lambda: not set(threading.enumerate()) - others)


def test_the_sweeper_survives_an_end_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    table, ended = LeaseTable(), threading.Event()

    def broken() -> None:
        raise ValueError("an end that raises")

    table.grant(REQUEST, 0.01, broken)
    table.grant(REQUEST, 0.05, ended.set)
    sweeper = Sweeper([table], interval_seconds=0.005)
    sweeper.start()
    assert ended.wait(5)
    assert sweeper.stop()
    assert "an end that raises" in caplog.text


def test_stopping_waits_no_longer_than_told() -> None:
    table, release = LeaseTable(), threading.Event()
    stuck = threading.Event()

    def hang() -> None:
        stuck.set()
        release.wait(10)

    table.grant(REQUEST, 0.01, hang)
    sweeper = Sweeper([table], interval_seconds=0.005)
    sweeper.start()
    assert stuck.wait(5)
    began = time.monotonic()
    assert not sweeper.stop(timeout_seconds=0.05)
    assert time.monotonic() - began < 2
    release.set()
    assert sweeper.stop()


def test_a_sweeper_can_be_stopped_by_what_it_calls_and_before_it_starts() -> None:
    assert Sweeper([], 1.0).stop()
    table, stopped = LeaseTable(), threading.Event()
    sweeper = Sweeper([table], interval_seconds=0.005)

    def stop_it() -> None:
        sweeper.stop()
        stopped.set()

    table.grant(REQUEST, 0.01, stop_it)
    sweeper.start()
    assert stopped.wait(5)
    assert sweeper.stop()
