"""Small pulls side by side: who reads for whom, and what becomes of the others when that one fails."""

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch

from tests.transfer.neighbours import CPU, rows_ref
from triptych.errors import TransferFailed
from triptych.journey import Int64Array
from triptych.transfer.local import LocalMapping
from triptych.transfer.nixl_company import Company, NotRead, room_of
from triptych.transfer.plan import plan_rows
from triptych.transfer.pull import CopyAbandoned, Pull
from triptych.transfer.slab import create_slab

SOON, LONG = 0.05, 30.0
UNIT_BYTES = 4096


class Rig:
    """Pulls of numbered units, each by a thread of its own; what is read waits until it is let."""

    def __init__(self) -> None:
        self.company = Company()
        self.slab = create_slab("embedding", 1, UNIT_BYTES, 16, CPU)
        self.threads = ThreadPoolExecutor(16)
        self.read: list[list[int]] = []
        self.may_go_on = threading.Event()
        self.failure: BaseException | None = None
        self.room = 100 * UNIT_BYTES

    def pull(self, unit: int) -> Pull:
        into = torch.zeros(1, UNIT_BYTES // 8, dtype=torch.int64)
        return plan_rows(rows_ref(5, 1, UNIT_BYTES // 8, offset=unit * UNIT_BYTES), LocalMapping(self.slab), into)

    def start(self, unit: int, seconds: float = LONG) -> "Future[Int64Array | NotRead]":
        """Its words are its unit's number. Returns once it leads, waits, or is over."""
        before = self.company.num_waiting() + sum(map(len, self.read))
        future = self.threads.submit(self._copy, unit, time.monotonic() + seconds)
        end = time.monotonic() + 5
        while self.company.num_waiting() + sum(map(len, self.read)) == before and not future.done():
            assert time.monotonic() < end
            time.sleep(0.001)
        return future

    def _copy(self, unit: int, deadline: float) -> Int64Array | NotRead:
        turn = self.company.enter(self.pull(unit), deadline, 1)
        outcome = self.company.wait(turn)
        if isinstance(outcome, CopyAbandoned):
            raise outcome
        if outcome is not None:
            return outcome
        with self.company.leading(turn):
            return self.company.read(turn, self.room, 100, self._read)

    def _read(self, pulls: Sequence[Pull]) -> list[Int64Array | NotRead]:
        self.read.append([int(pull.units[0]) for pull in pulls])
        assert self.may_go_on.wait(10)
        if self.failure is not None:
            raise self.failure
        return [pull.units for pull in pulls]


def test_who_comes_while_another_reads_is_read_for_with_all_that_wait() -> None:
    rig = Rig()
    futures = [rig.start(unit) for unit in range(6)]
    rig.may_go_on.set()
    assert [future.result(10) for future in futures] == [[unit] for unit in range(6)]
    assert rig.read == [[0], [1, 2, 3, 4, 5]]


def test_what_a_window_has_no_room_for_goes_next() -> None:
    rig = Rig()
    rig.room = 2 * UNIT_BYTES
    futures = [rig.start(unit) for unit in range(6)]
    rig.may_go_on.set()
    assert [future.result(10) for future in futures] == [[unit] for unit in range(6)]
    assert rig.read == [[0], [1, 2], [3, 4], [5]]


def test_a_companys_failure_is_its_leaders_and_the_others_are_sent_on_alone() -> None:
    rig = Rig()
    first, second, third = (rig.start(unit) for unit in range(3))
    rig.failure = TransferFailed("the network is gone")
    rig.may_go_on.set()
    for future in (first, second):  # the second leads the third
        with pytest.raises(TransferFailed, match="the network is gone"):
            future.result(10)
    assert third.result(10) == NotRead(unwritten=False)
    rig.failure = None
    assert rig.start(7).result(10) == [7]  # somebody leads again


def test_copies_that_do_not_end_hold_every_destination_of_a_company() -> None:
    rig, over = Rig(), False
    futures = [rig.start(unit) for unit in range(3)]
    rig.failure = CopyAbandoned("copying is overdue", lambda: over)
    rig.may_go_on.set()
    errors = []
    for future in futures:
        with pytest.raises(CopyAbandoned, match="overdue") as met:
            future.result(10)
        errors.append(met.value)
    assert not any(error.ended() for error in errors)
    over = True
    assert all(error.ended() for error in errors)


def test_who_waits_until_its_deadline_leaves_and_nothing_was_read_for_it() -> None:
    rig = Rig()
    first = rig.start(0)
    with pytest.raises(TransferFailed, match="waited for others' reads") as met:
        rig.start(1, SOON).result(10)
    assert not isinstance(met.value, CopyAbandoned)  # its destination is free
    last = rig.start(2)
    rig.may_go_on.set()
    assert (first.result(10), last.result(10)) == ([0], [2])
    assert rig.read == [[0], [2]]


def test_who_was_read_for_at_its_deadline_holds_its_destination_as_long_as_the_leaders_copy_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seconds in (("_GRACE_SECONDS", 0.05), ("_LEAST_SECONDS", 0.0)):
        monkeypatch.setattr(f"triptych.transfer.nixl_company.{name}", seconds)
    rig, over = Rig(), False
    turn = rig.company.enter(rig.pull(0), time.monotonic() + 0.2, 1)
    other = rig.start(1, 0.3)
    with rig.company.leading(turn):
        leader = rig.threads.submit(rig.company.read, turn, rig.room, 100, rig._read)
        with pytest.raises(CopyAbandoned, match="beside it") as met:
            other.result(10)
        rig.failure = CopyAbandoned("copying is overdue", lambda: over)
        rig.may_go_on.set()
        with pytest.raises(CopyAbandoned):
            leader.result(10)
    assert not met.value.ended()
    over = True
    assert met.value.ended()


def test_who_is_being_read_for_at_its_deadline_holds_its_destination(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_GRACE_SECONDS", 0.05), ("_LEAST_SECONDS", 0.0)):
        monkeypatch.setattr(f"triptych.transfer.nixl_company.{name}", seconds)
    rig = Rig()
    turn = rig.company.enter(rig.pull(0), time.monotonic() + 0.2, 1)
    other = rig.start(1, 0.3)
    with rig.company.leading(turn):
        leader = rig.threads.submit(rig.company.read, turn, rig.room, 100, rig._read)
        with pytest.raises(CopyAbandoned, match="beside it") as met:
            other.result(10)
        assert not met.value.ended()
        rig.may_go_on.set()
        leader.result(10)
        assert met.value.ended()


def test_who_has_little_time_left_goes_alone_and_nobody_with_less_than_its_leader_goes_along() -> None:
    rig = Rig()
    futures = [rig.start(0), rig.start(1, 0.9), rig.start(2), rig.start(3, LONG / 2), rig.start(4)]
    rig.may_go_on.set()
    for future in futures:
        future.result(10)
    assert rig.read == [[0], [1], [2], [3, 4]]


def test_another_leads_when_a_leader_finds_no_window() -> None:
    rig = Rig()
    turn = rig.company.enter(rig.pull(0), time.monotonic() + LONG, 1)
    assert rig.company.wait(turn) is None
    other = rig.start(1)
    with pytest.raises(TransferFailed, match="no window"), rig.company.leading(turn):
        raise TransferFailed("no window is free")
    rig.may_go_on.set()
    assert other.result(10) == [1]


@pytest.mark.parametrize("seed", range(5))
def test_whatever_comes_each_pull_gets_its_own_words_or_an_error(seed: int) -> None:
    chance = random.Random(seed)
    rig = Rig()
    rig.may_go_on.set()

    def read(pulls: Sequence[Pull]) -> list[Int64Array | NotRead]:
        time.sleep(chance.random() * 0.002)
        if chance.random() < 0.2:
            raise TransferFailed("by chance")
        return [NotRead(unwritten=True) if chance.random() < 0.1 else pull.units for pull in pulls]

    rig._read = read  # type: ignore[method-assign]
    futures = {number: rig.threads.submit(rig._copy, number % 16, time.monotonic() + 5) for number in range(200)}
    for number, future in futures.items():
        error = future.exception(10)
        if error is not None:
            assert str(error) == "by chance"
            continue
        found = future.result()
        assert isinstance(found, NotRead) or found == [number % 16]
    assert rig.company.num_waiting() == 0
    assert not rig.company._is_led


def test_rooms_in_a_window_are_aligned_for_a_gpu() -> None:
    assert [room_of(size) for size in (1, 256, 257)] == [256, 256, 512]
