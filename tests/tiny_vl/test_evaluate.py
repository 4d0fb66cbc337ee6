"""What `evaluate` refuses, where its figures go, and what they say about what was measured."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tools.tiny_vl.evaluate import ACCURACY, HELD_OUT, Results, named, parser, published, run, share_out
from tools.tiny_vl.exam import ServerFailed, ask_all, draw_question, model_at
from tools.tiny_vl.families import FAMILIES

_ROOT = Path(__file__).resolve().parents[2]


class Answering(BaseHTTPRequestHandler):
    """Serves a model that sees nothing, and under /v1/models what the server was told."""

    protocol_version = "HTTP/1.1"
    models = json.dumps({"data": [{"id": "blind"}]})

    def do_GET(self) -> None:
        self._send(self.models)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send(json.dumps({"choices": [{"message": {"content": "nothing"}, "finish_reason": "stop"}]}))

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _send(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


class Foreign(Answering):
    models = "<html>"


@pytest.fixture(params=[Answering])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), request.param) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--samples 0", "0 is not a whole number of at least 1"),
        ("--samples -3", "-3 is not a whole number of at least 1"),
        ("--samples 1.5", "1.5 is not a whole number of at least 1"),
        ("--url localhost:8000", "localhost:8000 is not a server's address"),
        ("--url http://localhost:8000/v2", "not a server's address"),
        ("--url http://localhost:99999", "no address"),
        ("--url http://localhost:1 --model other", "not allowed with argument"),
        ("--output no/such/folder/file.json", "no/such/folder is not a folder"),
        ("--output .", ". is a folder, expected a file"),
        (f"--output {__file__}/file.json", "is not a folder"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(arguments.split())
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_the_address_that_serve_prints_is_one() -> None:
    for text in (
        "http://127.0.0.1:8000",
        "http://127.0.0.1:8000/",
        "http://127.0.0.1:8000/v1",
        "http://127.0.0.1:8000/v1/",
    ):
        assert parser().parse_args(["--url", text]).url == "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        ("", ACCURACY),
        ("--held-out --samples 100", HELD_OUT),
        ("--samples 999", None),
        ("--held-out --samples 99", None),
        ("--families chart", None),
        ("--model other", None),
        ("--url http://127.0.0.1:8000", None),
    ],
)
def test_only_what_the_card_speaks_of_goes_to_the_published_files(arguments: str, file: Path | None) -> None:
    assert published(parser().parse_args(arguments.split())) == file


def test_nothing_asked_fails() -> None:
    for number in (0, -1):
        with pytest.raises(ValueError, match=f"{number} samples of each family"):
            share_out(number, FAMILIES["chart"])
    assert Results().below_bounds() == ["all families: nothing was asked"]
    results = Results()
    results.add(FAMILIES["blank"][0], [], 1.0)
    assert results.below_bounds() == ["blank/blank: nothing was asked"]


def test_figures_of_another_server_say_so(url: str, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    asked = f"--url {url}/v1 --samples 2 --families blank chart --output {file}"
    assert run(parser().parse_args(asked.split())) == 1
    measured = json.loads(file.read_text())
    what = measured["what"]
    assert (what["url"], what["model"], what["topology"], what["dtype"]) == (url, "blind", "unknown", "unknown")
    assert measured["families"]["blank"]["right"] == 2
    assert measured["families"]["chart"]["right"] == 0


def test_held_out_figures_have_no_bounds(url: str, tmp_path: Path) -> None:
    asked = f"--url {url} --samples 1 --families chart --held-out --output {tmp_path / 'figures.json'}"
    assert run(parser().parse_args(asked.split())) == 0


@pytest.mark.parametrize("url", [Foreign], indirect=True)
def test_a_server_of_something_else_is_told_in_one_line(url: str) -> None:
    with pytest.raises(ServerFailed, match=r"something else than OpenAI's API says \(JSONDecodeError"):
        model_at(url)


def test_a_server_that_is_not_there_is_told_in_one_line() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        port = server.server_port
    with pytest.raises(ServerFailed, match=f"http://127.0.0.1:{port} does not answer: "):
        ask_all(f"http://127.0.0.1:{port}", [draw_question("blank", 1, 0)])


def test_a_folder_is_named_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "tiny-vl").mkdir()
    assert named("tiny-vl") == "tiny-vl"
    assert named(str(tmp_path / "tiny-vl")) == "the folder tiny-vl"


@pytest.mark.parametrize(
    ("codes", "modules", "code"),
    [
        ((0, 0, 0, 0), ["evaluate --samples 7", "evaluate --held-out --samples 100", "measure_faults", "card"], 0),
        ((1, 0, 1, 0), ["evaluate --samples 7", "evaluate --held-out --samples 100", "measure_faults", "card"], 2),
        ((2,), ["evaluate --samples 7"], 2),
        ((1, 0, 2), ["evaluate --samples 7", "evaluate --held-out --samples 100", "measure_faults"], 2),
    ],
)
def test_make_eval_goes_on_below_bounds_and_stops_when_nothing_was_measured(
    codes: tuple[int, ...], modules: list[str], code: int, tmp_path: Path
) -> None:
    (tmp_path / ".installed").touch()
    (tmp_path / "codes").write_text("".join(f"{code}\n" for code in codes))
    python = tmp_path / "python"  # notes its arguments, ends with the next of the codes
    python.write_text(
        '#!/bin/sh\ncd "$(dirname "$0")"\necho "$*" >> asked\ncode=$(head -n 1 codes)\nsed -i 1d codes\nexit $code\n'
    )
    python.chmod(0o755)
    variables = [f"VENV={tmp_path}", f"BIN={tmp_path}", "ARGS=--samples 7"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    made = subprocess.run(["make", "eval", *variables], cwd=_ROOT, env=environment, capture_output=True)
    assert made.returncode == code
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.removeprefix("-m tools.tiny_vl ").removeprefix("-m tests.tiny_vl.") for line in asked] == modules
