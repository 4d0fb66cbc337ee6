"""`triptych doctor` at a terminal and for machines."""

import json
import socket

import pytest

from triptych.cli import main
from triptych.doctor.checks import CHECKS
from triptych.doctor.command import as_document
from triptych.doctor.finding import Asked, Finding, Verdict, fail, ok, warn

QUICK = ["--only", "python", "--only", "access"]


def test_findings_are_printed_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIPTYCH_ROUTER_HOST", "0.0.0.0")
    assert main(["doctor", *QUICK]) == 0
    first, second, advice = capsys.readouterr().out.splitlines()
    assert first.startswith("ok    python")
    assert second.startswith("warn  access")
    assert "triptych keys new" in advice


def test_findings_are_json_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--device", "cpu", *QUICK]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "ok"
    assert [entry["check"] for entry in document["checks"]] == ["python", "access"]


def test_the_exit_status_is_1_where_a_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setenv("TRIPTYCH_ROUTER_PORT", str(listener.getsockname()[1]))
        assert main(["doctor", "--only", "ports"]) == 1


def test_a_check_that_is_none_is_refused_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--only", "weather"]) == 2
    reason = capsys.readouterr().err
    assert all(check.name in reason for check in CHECKS)


def test_a_setting_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_ROUTER_PROT", "1")
    assert main(["doctor", *QUICK]) == 2


def test_the_worst_verdict_is_that_of_the_whole() -> None:
    python, libraries, *_ = CHECKS
    assert as_document([(python, ok("")), (libraries, warn("", "do"))])["verdict"] == "warn"
    assert as_document([(python, fail("", "do")), (libraries, warn("", "do"))])["verdict"] == "fail"


def test_every_check_has_a_name_and_a_limit_of_its_own() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(0 < check.limit_seconds <= 120 for check in CHECKS)


def test_what_is_asked_and_found_travels_whole() -> None:
    finding = Finding(Verdict.WARN, "seen", "advice")
    assert Finding.from_json(json.loads(json.dumps(finding.as_json()))) == finding


def test_settings_travel_whole(asked_with_lists: Asked) -> None:
    assert Asked.from_json(json.loads(json.dumps(asked_with_lists.as_json()))) == asked_with_lists
