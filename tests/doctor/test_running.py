"""Checks in processes of their own: what they do is a finding, and nothing of them stays."""

import time
from pathlib import Path

import psutil
import pytest

from triptych.config import load_settings
from triptych.doctor.checks import Check
from triptych.doctor.finding import Asked, Finding, Verdict
from triptych.doctor.running import run_checks

LONG = 60.0


def asked(peer: str = "") -> Asked:
    return Asked(load_settings(environment={}, flags={"serve.device": "cpu", "router.port": 4711}), peer)


def finding_of(name: str, limit_seconds: float = LONG, peer: str = "") -> Finding:
    check = Check(name, f"tests.doctor.misbehaving:{name}", limit_seconds)
    ((_, finding),) = run_checks([check], asked(peer))
    return finding


def test_a_check_is_asked_with_the_settings_of_the_server() -> None:
    assert finding_of("say_device", peer="there") == Finding(Verdict.OK, "cpu 4711 there")


@pytest.mark.parametrize("name", ["hang", "ignore_being_asked"])
def test_a_check_that_hangs_is_ended_and_fails(name: str) -> None:
    began = time.monotonic()
    finding = finding_of(name, limit_seconds=1.5)
    assert finding.verdict is Verdict.FAIL
    assert "no answer within 1.5 s" in finding.seen
    assert time.monotonic() - began < LONG


def test_what_a_hanging_check_said_last_is_told() -> None:
    assert finding_of("hang", limit_seconds=6.0).seen.endswith(": asking a machine that never answers")


def test_a_check_that_raises_is_a_finding_with_the_reason() -> None:
    finding = finding_of("raise_something")
    assert finding.verdict is Verdict.FAIL
    assert finding.seen.endswith("ZeroDivisionError: a library divided by zero")


def test_a_check_that_crashes_is_a_finding() -> None:
    assert "was ended by SIGSEGV" in finding_of("crash").seen


def test_a_check_that_is_not_there_is_a_finding() -> None:
    ((_, finding),) = run_checks([Check("absent", "triptych.doctor.absent:look")], asked())
    assert finding.verdict is Verdict.FAIL
    assert "No module named" in finding.seen


def test_what_libraries_print_is_no_finding() -> None:
    assert finding_of("talk") == Finding(Verdict.OK, "talked")


def test_what_a_check_has_started_ends_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    assert finding_of("leave_a_process", peer=str(file)).verdict is Verdict.OK
    left = int(file.read_text())
    end = time.monotonic() + 10
    while psutil.pid_exists(left) and psutil.Process(left).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, "it still runs"
        time.sleep(0.02)


def test_findings_come_in_the_order_of_the_checks() -> None:
    names = ["hang", "say_device", "raise_something", "say_device"]
    checks = [
        Check(f"{at}", f"tests.doctor.misbehaving:{name}", 2.0 if name == "hang" else LONG)
        for at, name in enumerate(names)
    ]
    assert [check.name for check, _ in run_checks(checks, asked())] == ["0", "1", "2", "3"]


def test_a_doctor_that_is_interrupted_leaves_no_check_running() -> None:
    before = set(psutil.Process().children(recursive=True))
    findings = run_checks([Check(name, f"tests.doctor.misbehaving:{name}") for name in ("say_device", "hang")], asked())
    next(findings)
    findings.close()  # type: ignore[attr-defined]
    assert set(psutil.Process().children(recursive=True)) == before
