"""What the commands that ask a server make of their flags, and of what it says."""

import base64
import json
from pathlib import Path

import pytest

from tests.web import QuietHandler, WebServer
from triptych.cli import build_parser, main
from triptych.client import image_part
from triptych.config import load_settings

FILE = Path(__file__).parent / "data" / "red-circle.png"


class AdminPortElsewhere(QuietHandler):
    def do_GET(self) -> None:
        body = {"error": {"message": f"there is no {self.path!r} here", "code": "not_found"}}
        self.answer(404, {"content-type": "application/json"}, json.dumps(body).encode())


def test_a_picture_named_by_a_file_url_is_read_here(tmp_path: Path) -> None:
    file = tmp_path / "red circle.png"
    file.write_bytes(FILE.read_bytes())
    sent = image_part(str(FILE))
    assert sent["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(FILE.read_bytes()).decode()
    assert image_part(file.as_uri()) == sent
    assert image_part(file.as_uri().replace("file://", "file://localhost")) == sent


@pytest.mark.parametrize("command", [["status"], ["scale"]])
def test_who_asks_the_public_port_hears_of_the_admin_port(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with WebServer(AdminPortElsewhere) as server:
        assert main([*command, "--url", server.url]) == 1
    assert "a server with an admin port answers there: --url http://HOST:ADMIN_PORT" in capsys.readouterr().err


COMMANDS = (
    ["ask", "?"],
    ["status"],
    ["scale"],
    ["role", "w", "r"],
    ["bench"],
    ["batch", "a", "b"],
    ["timeline", "i"],
    ["reload"],
)


class KeysOnly(QuietHandler):
    def do_GET(self) -> None:
        body = {"error": {"message": "the API key is missing or wrong", "code": "invalid_api_key"}}
        self.answer(401, {"content-type": "application/json"}, json.dumps(body).encode())


def test_who_has_sent_no_key_hears_how_to(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for variable in ("TRIPTYCH_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    told = "no key was sent: --api-key KEY, or TRIPTYCH_API_KEY in the environment"
    with WebServer(KeysOnly) as server:
        assert main(["status", "--url", server.url]) == 1
        assert told in capsys.readouterr().err
        assert main(["status", "--url", server.url, "--api-key", "wrong"]) == 1
        assert told not in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_the_key_may_stand_in_the_environment(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIPTYCH_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "of openai")
    assert build_parser().parse_args(command).api_key == "of openai"
    monkeypatch.setenv("TRIPTYCH_API_KEY", "ours")
    assert build_parser().parse_args(command).api_key == "ours"
    assert build_parser().parse_args([*command, "--api-key", "given"]).api_key == "given"
    assert load_settings().router.api_key == "", "it is no setting of a server"


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf", "soon"])
def test_a_time_that_is_none_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["scale"], ["bench"], ["batch", "a", "b"]):
        with pytest.raises(SystemExit) as refused:
            main([*command, "--timeout", seconds])
        assert refused.value.code == 2
        assert f"{seconds!r} is no number of seconds above 0" in capsys.readouterr().err
