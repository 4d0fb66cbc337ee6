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
    said = json.dumps({"error": {"message": "the model 'm' does not exist", "code": "model_not_found"}}).encode()
    with ScriptedServer(lambda body: Answer([said], status=404)) as server:
        assert main(["bench", "--url", server.url, "--model", "m", *FLAGS]) == 1
    assert capsys.readouterr().out.count("http 404, for example: the model 'm' does not exist\n") == 1


def test_a_size_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--size", "large"]) == 2
    assert "expected WIDTHxHEIGHT" in capsys.readouterr().err


def test_a_class_of_service_brings_its_limits_and_is_named_to_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "triptych.toml"
    settings.write_text('[slo]\ndefault = "gold"\n[[slo.classes]]\nname = "gold"\nttft_seconds = 30\ntarget = 0.5\n')
    with ScriptedServer(lambda body: Answer(words(3))) as server:
        flags = ["--config", str(settings), "--slo", "gold", "--slo-e2e", "0.000001", "--json", "-"]
        assert main(["bench", "--url", server.url, *FLAGS, *flags]) == 0
        assert {visit.headers["x-triptych-slo"] for visit in server.visits} == {"gold"}
    told = json.loads(capsys.readouterr().out)
    assert (told["what"]["slo_ttft_seconds"], told["what"]["slo_target"]) == (30.0, 0.5)
    assert (told["measures"]["attainment"], told["measures"]["goodput_requests_per_second"]) == (0.0, 0.0)
    assert main(["bench", "--config", str(settings), "--slo", "silver"]) == 2
    assert "'silver' is not one of gold" in capsys.readouterr().err
