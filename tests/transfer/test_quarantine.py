import threading
import time

import pytest
import torch

from triptych.errors import TransferFailed
from triptych.transfer.mapping import poll_until
from triptych.transfer.quarantine import Quarantine, overlap


def test_memory_an_abandoned_copy_writes_into_is_known_until_the_copy_ends() -> None:
    landing, over, ended = torch.zeros(100), threading.Event(), threading.Event()
    quarantine = Quarantine()
    quarantine.hold(over.is_set, landing[20:40], ended.set)
    assert quarantine.let_go() == 1
    assert quarantine.writes_into(landing)
    assert quarantine.writes_into(landing[39:50])
    assert not quarantine.writes_into(landing[40:])
    assert not quarantine.writes_into(landing[:20])
    assert not ended.is_set()
    over.set()
    assert not quarantine.writes_into(landing)
    assert ended.is_set()
    assert quarantine.let_go() == 0


def test_an_end_is_announced_once() -> None:
    quarantine, ends = Quarantine(), []
    quarantine.hold(lambda: True, torch.zeros(1), lambda: ends.append(1))
    assert [quarantine.let_go() for _ in range(3)] == [0, 0, 0]
    assert ends == [1]


def test_tensors_overlap_when_they_share_bytes() -> None:
    memory = torch.zeros(8, 8)
    assert overlap(memory, memory)
    assert overlap(memory[2:4], memory[3:])
    assert overlap(memory[:, 2], memory[4])
    assert overlap(memory.view(torch.uint8)[0], memory[0])
    assert not overlap(memory[2:4], memory[4:])
    assert not overlap(memory, torch.zeros(8, 8))
    assert not overlap(memory[:0], memory)


def test_polling_ends_when_it_is_done_or_overdue() -> None:
    answers = [False, False, True]
    poll_until(lambda: answers.pop(0), time.monotonic() + 5, "three asks")
    assert answers == []
    began = time.monotonic()
    with pytest.raises(TransferFailed, match="a hung device is overdue"):
        poll_until(lambda: False, began + 0.03, "a hung device")
    assert 0.03 <= time.monotonic() - began < 2
    poll_until(lambda: True, began - 1, "what is done already")  # a past deadline is no matter then
