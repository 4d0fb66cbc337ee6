"""The faults themselves: what is set strikes once, where it was set, and nowhere without leave."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from triptych.errors import ConfigError, InvalidRecord
from triptych.transfer.faults import STEPS, SWITCH_VARIABLE, Action, Fault, FaultFolder, Faults


@pytest.fixture
def folder(tmp_path: Path) -> FaultFolder:
    return FaultFolder(tmp_path / "faults")


def obeying(folder: FaultFolder, *roles: str) -> Faults:
    return Faults(str(folder.path), roles)


def test_without_a_folder_nothing_happens() -> None:
    faults = Faults()
    assert not faults.on
    for step in STEPS:
        faults.at(step)
        assert faults.messages(step, step) == (step,)


def test_a_worker_refuses_faults_that_the_environment_does_not_allow(folder: FaultFolder) -> None:
    with pytest.raises(ConfigError, match=SWITCH_VARIABLE):
        Faults.allowed(str(folder.path), (), {})
    assert Faults.allowed(str(folder.path), (), {SWITCH_VARIABLE: "1"}).on
    assert not Faults.allowed("", (), {SWITCH_VARIABLE: "1"}).on


@pytest.mark.parametrize("step", STEPS)
def test_every_fault_survives_being_written_down(step: str) -> None:
    for action in STEPS[step]:
        fault = Fault(step, action, at="decode", seconds=0.25, skip=3, every=True)
        assert Fault.from_text(fault.to_text()) == fault
        assert Fault.from_text(f"{step} {action}") == Fault(step, action)


@pytest.mark.parametrize("text", ["", "encode.ref", "encode.reff kill", "encode.ref burn", "encode.ref kill skip=x"])
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(InvalidRecord):
        Fault.from_text(text)


def test_a_fault_is_refused_where_it_cannot_happen() -> None:
    with pytest.raises(InvalidRecord, match=r"corrupt cannot happen at encode\.ref"):
        Fault("encode.ref", Action.CORRUPT)


def test_of_many_who_come_to_a_step_one_alone_is_struck(folder: FaultFolder) -> None:
    folder.set(Fault("kv.copied", Action.CORRUPT))
    hits: list[int] = []

    def come(faults: Faults) -> None:
        for _ in range(9):
            faults.at("kv.copied", lambda: hits.append(1))

    threads = [threading.Thread(target=come, args=(obeying(folder),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hits == [1]
    assert folder.struck() == [(Fault("kv.copied", Action.CORRUPT), os.getpid())]
    assert folder.waiting() == []


def test_a_fault_strikes_its_own_step_and_role_alone(folder: FaultFolder) -> None:
    folder.set(Fault("release.serve", Action.DELAY, at="encode", seconds=0))
    obeying(folder, "encode").at("release.ask")
    obeying(folder, "prefill", "decode").at("release.serve")
    assert folder.struck() == []
    obeying(folder, "encode", "prefill").at("release.serve")
    assert len(folder.struck()) == 1


def test_a_fault_lets_pass_as_many_as_it_skips(folder: FaultFolder) -> None:
    folder.set(Fault("encode.ref", Action.DROP, skip=2))
    faults = obeying(folder)
    assert [list(faults.messages("encode.ref", number)) for number in range(5)] == [[0], [1], [], [3], [4]]


def test_a_fault_for_every_time_never_ends(folder: FaultFolder) -> None:
    folder.set(Fault("encode.ref", Action.DROP, every=True))
    faults = obeying(folder)
    assert [list(faults.messages("encode.ref", number)) for number in range(3)] == [[], [], []]
    folder.clear()
    assert list(faults.messages("encode.ref", 4)) == [4]


def test_messages_are_lost_doubled_and_reordered(folder: FaultFolder) -> None:
    for action in (Action.DROP, Action.DUPLICATE, Action.REORDER):
        folder.set(Fault("kv.ref", action))
    faults = obeying(folder)
    assert [list(faults.messages("kv.ref", number)) for number in range(5)] == [[], [1, 1], [], [3, 2], [4]]


def test_a_delay_lasts_as_long_as_it_says(folder: FaultFolder) -> None:
    folder.set(Fault("rows.begin", Action.DELAY, seconds=0.1))
    began = time.monotonic()
    obeying(folder).at("rows.begin")
    assert 0.1 <= time.monotonic() - began < 2
    obeying(folder).at("rows.begin")
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("action", [Action.KILL, Action.STOP])
def test_the_process_itself_is_killed_or_stopped(folder: FaultFolder, action: Action) -> None:
    folder.set(Fault("rows.middle", action))
    script = f"from triptych.transfer.faults import Faults; Faults({str(folder.path)!r}).at('rows.middle'); print('on')"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    if action is Action.STOP:
        deadline = time.monotonic() + 60
        while _state(process.pid) != "T":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=60)
    assert (output, process.returncode) == ((b"on\n", 0) if action is Action.STOP else (b"", -9))


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
