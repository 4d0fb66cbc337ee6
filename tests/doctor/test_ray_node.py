"""Ray's folder and its token."""

from pathlib import Path

import pytest

from triptych.config import load_settings
from triptych.doctor.finding import Asked, Verdict
from triptych.doctor.ray_node import judge_folder, judge_token, look_folder, look_token

ASKED = Asked(load_settings(environment={}))
TOKEN = Path("/home/somebody/.ray/auth_token")
GIB = 2**30


@pytest.mark.parametrize(
    ("folder", "free", "is_writable", "verdict"),
    [
        ("/tmp", 50 * GIB, True, Verdict.OK),
        ("/tmp", 50 * GIB, False, Verdict.FAIL),
        ("/tmp", 4 * GIB, True, Verdict.WARN),
        ("/scratch/" + "a" * 40, 50 * GIB, True, Verdict.FAIL),
    ],
)
def test_what_is_said_of_rays_folder(folder: str, free: int, is_writable: bool, verdict: Verdict) -> None:
    assert judge_folder(Path(folder), free, 100 * GIB, is_writable).verdict is verdict


def test_a_folder_that_is_not_there_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "absent"))
    assert look_folder(ASKED).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("environment", "mode", "verdict"),
    [
        ({}, None, Verdict.OK),
        ({}, 0o100600, Verdict.OK),
        ({}, 0o100644, Verdict.WARN),
        ({"RAY_AUTH_MODE": "disabled"}, 0o100600, Verdict.WARN),
        ({"RAY_AUTH_MODE": "token"}, None, Verdict.FAIL),
        ({"RAY_AUTH_MODE": "token"}, 0o100600, Verdict.OK),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "secret"}, None, Verdict.OK),
        ({"RAY_AUTH_TOKEN_PATH": "/absent"}, None, Verdict.FAIL),
    ],
)
def test_what_is_said_of_the_token(environment: dict[str, str], mode: int | None, verdict: Verdict) -> None:
    finding = judge_token(environment, TOKEN, mode)
    assert finding.verdict is verdict
    assert "secret" not in f"{finding.seen}{finding.advice}"


def test_a_token_is_looked_for_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o640)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    assert str(token) in look_token(ASKED).seen
