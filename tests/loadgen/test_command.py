"""The command line around the load generator."""

import json
from pathlib import Path

import pytest

from tests.loadgen.server import Answer, ScriptedServer, words
from triptych.cli import main

FLAGS = ["--requests", "3", "--images", "1", "--size", "40x30", "--max-tokens", "3", "--warmup", "0"]


def test_a_table_is_printed_and_the_json_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(lambda body: Answer(words(3))) as server:
        file = tmp_path / "result.json"
        status = main(["bench", "--url", server.url, *FLAGS, "--rate", "50", "--json", str(file)])
    assert status == 0
    assert "TTFT ms" in capsys.readouterr().out
    what = json.loads(file.read_text())["what"]
    assert (what["model"], what["width"], what["height"], what["rate"]) == ("listed", 40, 30, 50.0)


def test_a_dash_writes_the_json_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(lambda body: Answer(words(3))) as server:
        assert main(["bench", "--url", server.url, *FLAGS, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["measures"]["completed"] == 3


def test_a_run_without_one_complete_answer_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(lambda body: Answer([b"no"], status=503)) as server:
        assert main(["bench", "--url", server.url, "--model", "m", *FLAGS]) == 1
    assert "error: http 503" in capsys.readouterr().out


def test_a_size_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--size", "large"]) == 1
    assert "expected WIDTHxHEIGHT" in capsys.readouterr().err
