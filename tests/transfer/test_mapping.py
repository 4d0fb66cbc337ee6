"""Waiting for what another process or a device does."""

import time

import pytest

from triptych.errors import TransferFailed
from triptych.transfer.mapping import poll_until


class Clock:
    """Time that passes by looking, 10 microseconds each time, and by sleeping."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        monkeypatch.setattr(time, "monotonic", self._look)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _look(self) -> float:
        self.now += 10e-6
        return self.now

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_what_is_done_soon_is_noticed_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    looks = iter([False] * 9 + [True])
    poll_until(lambda: next(looks), 5.0, "a copy")
    assert clock.pauses == []


def test_who_waits_longer_sleeps_for_a_part_of_what_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    poll_until(lambda: clock.now > 1.0, 5.0, "a copy")
    assert clock.pauses == sorted(clock.pauses)
    assert clock.pauses[0] < 50e-6
    assert clock.pauses[-1] == 1e-3


def test_a_deadline_ends_it_and_says_what_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with pytest.raises(TransferFailed, match="reading the moon is overdue"):
        poll_until(lambda: False, 0.02, "reading the moon")
    assert 0.02 <= clock.now < 0.021
    poll_until(lambda: True, 0.0, "what is done already")
