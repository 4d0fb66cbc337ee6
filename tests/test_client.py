"""What the commands that ask a server make of their flags, and of what it says."""

import base64
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.web import QuietHandler, WebServer
from triptych import client
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
    *(["ask", "?"], ["timeline", "id"], ["status"], ["scale"], ["role", "w", "r"], ["reload"], ["bench"]),
    ["batch", "a", "b"],
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


@pytest.mark.parametrize("command", COMMANDS)
def test_a_key_that_no_header_can_have_is_refused_and_not_repeated(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert build_parser().parse_args([*command, "--api-key", " secret\r\n"]).api_key == "secret", "as of a file"
    for key in ("secret\nof two lines", "secret\udcff"):
        with pytest.raises(SystemExit) as refused:
            main([*command, "--api-key", key])
        assert refused.value.code == 2
        told = capsys.readouterr().err
        assert "it has characters that no header of a request can have" in told
        assert "secret" not in told


class Keys(QuietHandler):
    def do_GET(self) -> None:
        message = self.headers["authorization"].encode("latin-1").decode()
        body = json.dumps({"error": {"message": message}}).encode()
        self.answer(401, {"content-type": "application/json"}, body)


def test_a_bench_without_a_key_is_told_why_it_is_let_in_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    with WebServer(Keys) as server:
        assert main(["bench", "--url", server.url, "--api-key", "wrong"]) == 1
    assert "refused (401): Bearer wrong" in capsys.readouterr().err


def test_a_key_may_have_any_letters(capsys: pytest.CaptureFixture[str]) -> None:
    with WebServer(Keys) as server:
        assert main(["status", "--url", server.url, "--api-key", "clé"]) == 1
    assert "Bearer clé" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["status", "--url", "127.0.0.1:8000"], "has no scheme; write http://127.0.0.1:8000"),
        (["status", "--url", "http://127.0.0.1:abc"], "is none: Invalid port"),
        (["status", "--url", "http://[::1"], "is none: "),
        (["status", "--url", "http://\udcff"], "is none: "),
        (["status", "--url", "http://"], "is none; write http://HOST:PORT"),
        (["status", "--url", "ftp://127.0.0.1"], "is none; write http://HOST:PORT"),
        (["role", "\udcff", "encode"], "this cannot be asked"),
        (["ask", "?", "--model", "m", "--temperature", "nan"], "this cannot be asked"),
        (["scale", "encode=-1"], "'encode=-1' is no wish; write ROLE=NUMBER"),
        (["reload", "--model", ""], "--model is empty, expected a folder"),
        (["ask", "?", "--model", "m", "--image", "/no/such"], "cannot read /no/such: No such file"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_the_status_of_a_wrong_word(
    command: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert reason in told


def test_a_password_in_the_servers_address_is_told_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", "http://user:secret@127.0.0.1:1"]) == 1
    told = capsys.readouterr().err
    assert "no server answers at http://127.0.0.1:1" in told
    assert "secret" not in told


class SomethingElse(QuietHandler):
    body = b""

    def do_GET(self) -> None:
        self.answer(200, {"content-type": "application/json"}, self.body)


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"workers": [{}], "groups": {"encode": {}}, "sets": [{}]}'])
@pytest.mark.parametrize("command", [["status"], ["scale"], ["reload"], ["timeline", "id"], ["ask", "?"]])
def test_what_is_no_triptych_server_is_told_as_such(
    command: list[str], body: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SomethingElse, "body", body)
    with WebServer(SomethingElse) as server:
        assert main([*command, "--url", server.url]) == 1
    (told,) = capsys.readouterr().err.splitlines()
    assert "no Triptych server" in told


class Cluster(QuietHandler):
    """Two workers that do everything, and one that has not come back."""

    coming: tuple[dict[str, object], ...] = ()

    def do_GET(self) -> None:
        roles = ["encode", "prefill", "decode"]
        there = {"roles": roles, "state": "ready", "gauges": {}, "address": "127.0.0.1:1"}
        number = len(self.coming)
        body = {
            "workers": [{**there, "worker_id": f"epd-{index}"} for index in range(2)],
            "coming": self.coming,
            "roles": {role: {"wanted": 2 + number, "ready": 2, "coming": number} for role in roles},
        }
        self.answer(200, {"content-type": "application/json"}, json.dumps(body).encode())


def test_status_counts_who_has_not_come_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with WebServer(Cluster) as server:
        assert main(["status", "--url", server.url]) == 0
        assert "encode 2 of 2\nprefill 2 of 2\ndecode 2 of 2\n" in capsys.readouterr().out
        lost = {"worker_id": "epd-2", "roles": ["decode", "encode", "prefill"], "note": "down: killed"}
        monkeypatch.setattr(Cluster, "coming", (lost,))
        assert main(["status", "--url", server.url]) == 1
    told = capsys.readouterr().out
    assert "decode 2 of 3, 1 coming\n    epd-2 down: killed\n" in told


@pytest.mark.parametrize("command", [["status"], ["scale"], ["scale", "encode=2"], ["reload"]])
def test_a_server_that_says_nothing_is_not_waited_for_without_end(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "_TOLD_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert main([*command, "--url", url]) == 1
    assert f"the server at {url} has not answered in time" in capsys.readouterr().err


class Asked(QuietHandler):
    def do_GET(self) -> None:
        body = json.dumps({"error": {"message": f"asked for {self.path}"}}).encode()
        self.answer(404, {"content-type": "application/json"}, body)


def test_a_requests_id_is_one_segment_of_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    with WebServer(Asked) as server:
        assert main(["timeline", "../../admin/scale", "--url", server.url]) == 1
        assert main(["timeline", "\udcff", "--url", server.url]) == 1
    told = capsys.readouterr().err
    assert "asked for /v1/requests/..%2F..%2Fadmin%2Fscale/timeline" in told
    assert "asked for /v1/requests/%FF/timeline" in told


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "soon"])
def test_a_time_that_may_be_none_is_a_number(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("--deadline", "--keep"):
        with pytest.raises(SystemExit) as refused:
            main(["reload", "--back", name, seconds])
        assert refused.value.code == 2
        assert f"{seconds!r} is no number of seconds, 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["--requests-per-minute", "--tokens-per-minute", "--max-concurrent"])
@pytest.mark.parametrize("number", ["-1", "1.5", "9" * 5000])
def test_no_key_is_made_with_limits_that_a_server_would_refuse(
    name: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["keys", "new", "alice", name, number])
    assert refused.value.code == 2
    captured = capsys.readouterr()
    assert "is no limit, which is a whole number, 0 for none" in captured.err
    assert captured.out == ""


COMMAND = [sys.executable, "-m", "triptych.cli", "keys", "new", "alice"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_cannot_be_written_is_said_in_a_line(unbuffered: str) -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(COMMAND, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[2:] == ["triptych keys: [Errno 28] No space left on device"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_who_has_read_enough_is_told_nothing_more(unbuffered: str) -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    reads, writes = os.pipe()
    os.close(reads)
    ended = subprocess.run(COMMAND, env=environment, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writes)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 2, "the key, and for which file its table is"
