"""The unit for one host, as far as systemd judges units without running them."""

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.shell import DEPLOY
from triptych.cli import main
from triptych.config import load_settings

UNIT = DEPLOY / "systemd" / "triptych.service"
PROGRAM = "/opt/triptych/bin/triptych"


def options() -> configparser.SectionProxy:
    """Of [Service]; of those that may be repeated, the last."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    return parser["Service"]


def told_by_systemd(folder: Path, text: str) -> list[str]:
    """Faults of the unit, with a program and a user that are here; those of the file are made when it is installed."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not here")
    unit = folder / "triptych.service"
    unit.write_text(text.replace(PROGRAM, sys.executable).replace("=triptych\n", "=root\n", 2))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
    return [line for line in done.stderr.splitlines() if "triptych.service" in line]


def test_systemd_finds_no_fault(tmp_path: Path) -> None:
    assert told_by_systemd(tmp_path, UNIT.read_text()) == []


def test_systemd_finds_an_option_that_is_none(tmp_path: Path) -> None:
    assert "LimitNOFLIE" in " ".join(told_by_systemd(tmp_path, UNIT.read_text().replace("LimitNOFILE", "LimitNOFLIE")))


def test_it_runs_as_nobody_who_may_more() -> None:
    found = options()
    assert found["User"] == "triptych"
    assert found["NoNewPrivileges"] == "yes"
    assert found["CapabilityBoundingSet"] == ""
    assert found["ProtectSystem"] == "strict"


def test_the_node_is_looked_over_before_the_server_starts() -> None:
    found = options()
    assert found["ExecStartPre"].startswith(f"{PROGRAM} doctor ")
    assert found["ExecStart"].startswith(f"{PROGRAM} serve ")
    assert found["ExecStart"].split()[-2:] == found["ExecStartPre"].split()[-2:], "both read the same settings"


def test_it_is_started_again_unless_its_settings_cannot_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = tmp_path / "triptych.toml"
    settings.write_text("[router]\nprot = 8000\n")
    found = options()
    assert found["Restart"] == "on-failure"
    assert int(found["RestartPreventExitStatus"]) == main(["serve", "--config", str(settings)])
    assert "did you mean router.port" in capsys.readouterr().err


def test_more_files_may_be_open_than_a_router_takes_connections() -> None:
    router = load_settings(environment={}).router
    assert int(options()["LimitNOFILE"]) > router.max_connections + router.concurrent_fetches


def test_what_the_server_needs_is_not_forbidden() -> None:
    """GPUs, compiled kernels, and neighbours' /proc/PID/fd."""
    assert not {"PrivateDevices", "MemoryDenyWriteExecute", "ProtectProc", "PrivateUsers"} & set(options())
