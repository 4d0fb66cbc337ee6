"""A file of requests becomes a file of answers: each line once, whatever happens in between."""

import itertools
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.batch.server import CountingServer, Reply, echo
from triptych.batch import sender
from triptych.batch.lines import read_lines
from triptych.cli import main
from triptych.errors import InvalidRequest


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "FIRST_BACKOFF_SECONDS", 0.01)


def line(custom_id: str, **fields: Any) -> dict[str, Any]:
    entry = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": {"question": custom_id}}
    return entry | fields


def write(path: Path, *entries: Any) -> Path:
    path.write_text("".join((entry if isinstance(entry, str) else json.dumps(entry)) + "\n" for entry in entries))
    return path


def read(path: Path) -> dict[str, Any]:
    """Lines by custom_id; fails where one is there twice."""
    entries = [json.loads(text) for text in path.read_text().splitlines()]
    by_id = {entry["custom_id"]: entry for entry in entries}
    assert len(by_id) == len(entries)
    return by_id


def numbered(count: int) -> list[dict[str, Any]]:
    return [line(f"q{index}") for index in range(count)]


def test_each_line_has_an_answer_in_openais_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write(tmp_path / "in.jsonl", *numbered(20)), tmp_path / "out.jsonl"
    with CountingServer() as server:
        flags = ["--url", server.url + "/v1/", "--api-key", "k", "--concurrency", "3"]
        assert main(["batch", str(source), str(target), *flags]) == 0
    answers = read(target)
    assert answers.keys() == {f"q{index}" for index in range(20)}
    response = {"status_code": 200, "request_id": "r", "body": echo("q7", 0)[2]}
    assert answers["q7"] == {"id": "batch_req_q7", "custom_id": "q7", "response": response, "error": None}
    assert server.keys == {"Bearer k"}
    assert server.most_at_once <= 3
    assert "batch: 20 of 20 done, 0 failed" in capsys.readouterr().err


def test_unusable_lines_are_all_named_before_anything_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = [
        line("a"),
        "{",
        "[]",
        line("a"),
        line(""),
        line("g", method="GET"),
        line("u", url="/v1/embeddings"),
        line("b", body=[]),
        line("s", body={"stream": True}),
    ]
    source = write(tmp_path / "in.jsonl", *wrong)
    with CountingServer() as server:
        assert main(["batch", str(source), str(tmp_path / "out.jsonl"), "--url", server.url]) == 2
        assert not server.asked
    told = capsys.readouterr().err
    for number in range(2, 10):
        assert f"line {number}: " in told
    assert "line 4: custom_id 'a' is that of line 1 as well" in told
    assert not (tmp_path / "out.jsonl").exists()


def test_a_custom_id_that_comes_twice_is_named_also_where_a_line_is_bad_anyway(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", line("a", method="GET"), line("a"), line("b"), line("b", body=[]))
    with pytest.raises(InvalidRequest) as caught:
        read_lines(source)
    assert caught.value.message.splitlines()[1:] == [
        "  line 1: method is 'GET', expected 'POST'",
        "  line 2: custom_id 'a' is that of line 1 as well",
        "  line 4: body must be an object; custom_id 'b' is that of line 3 as well",
    ]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_later_is_asked_again_when_the_server_says(tmp_path: Path, status: int) -> None:
    moments: list[float] = []

    def script(text: str, before: int) -> Reply:
        moments.append(time.monotonic())
        return (status, {"retry-after": "0.3"}, {"error": {}}) if before < 2 else echo(text, before)

    source, target = write(tmp_path / "in.jsonl", line("a")), tmp_path / "out.jsonl"
    with CountingServer(script) as server:
        assert main(["batch", str(source), str(target), "--url", server.url]) == 0
    assert server.asked == {"a": 3}
    assert min(later - earlier for earlier, later in itertools.pairwise(moments)) >= 0.3


def test_what_cannot_pass_is_written_down_once_and_fails_the_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(text: str, before: int) -> Reply:
        refusals: dict[str, Reply] = {
            "bad": (400, {}, {"error": {"message": "no"}}),
            "final": (503, {"x-should-retry": "false"}, {"error": {}}),
        }
        return refusals.get(text) or echo(text, before)

    source = write(tmp_path / "in.jsonl", line("bad"), line("good"), line("final"))
    target, errors = tmp_path / "out.jsonl", tmp_path / "errors.jsonl"
    with CountingServer(script) as server:
        command = ["batch", str(source), str(target), "--url", server.url]
        assert main(command) == 1
        assert "2 of 3 have no answer" in capsys.readouterr().err
        assert read(target)["bad"]["response"]["status_code"] == 400
        assert main(command) == 1  # nothing is left to ask
        assert server.asked == {"bad": 1, "good": 1, "final": 1}
        target.unlink()
        assert main([*command, "--errors", str(errors)]) == 1
    assert read(target).keys() == {"good"}
    assert read(errors).keys() == {"bad", "final"}


def test_a_request_without_any_answer_says_why_and_keeps_to_its_time(tmp_path: Path) -> None:
    source, target = write(tmp_path / "in.jsonl", line("a")), tmp_path / "out.jsonl"
    command = ["batch", str(source), str(target)]
    assert main([*command, "--url", "http://127.0.0.1:9", "--max-retries", "2"]) == 1
    assert read(target)["a"]["response"] is None
    assert read(target)["a"]["error"]["code"] == "no_response"
    target.unlink()

    def slow(text: str, before: int) -> Reply:
        time.sleep(1.0)
        return echo(text, before)

    began = time.monotonic()
    with CountingServer(slow) as server:
        assert main([*command, "--url", server.url, "--timeout", "0.2"]) == 1
        assert time.monotonic() - began < 1.0
    assert "no answer within 0.2 s" in read(target)["a"]["error"]["message"]


def test_a_torn_last_line_is_cut_off_and_asked_again(tmp_path: Path) -> None:
    source, target = write(tmp_path / "in.jsonl", *numbered(3)), tmp_path / "out.jsonl"
    with CountingServer() as server:
        command = ["batch", str(source), str(target), "--url", server.url, "--concurrency", "1"]
        assert main(command) == 0
        whole = target.read_bytes()
        for kept in (len(whole) - 1, len(whole) - 40, len(whole.splitlines(keepends=True)[0]) + 1):
            target.write_bytes(whole[:kept])
            assert main(command) == 0
            assert target.read_bytes() == whole
    assert server.asked == {"q0": 1, "q1": 2, "q2": 4}


def test_the_output_of_another_batch_or_of_none_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = write(tmp_path / "in.jsonl", line("mine")), tmp_path / "out.jsonl"
    with CountingServer() as server:
        command = ["batch", str(source), str(target), "--url", server.url]
        for text, words in ((json.dumps({"custom_id": "other", "response": None}), "'other'"), ("a diary", "line 1")):
            target.write_text(text + "\n")
            assert main(command) == 2
            assert words in capsys.readouterr().err
            assert target.read_text() == text + "\n"
        assert not server.asked
        assert main(["batch", str(source), str(source), "--url", server.url]) == 2


@pytest.mark.slow
def test_killed_at_any_moment_and_started_again_every_line_is_there_once(tmp_path: Path) -> None:
    count = 400
    filler = "x" * 20_000  # a line is no longer one page, so writes can be torn
    seconds = random.Random(7)

    def script(text: str, before: int) -> Reply:
        time.sleep(0.02)
        return 200, {}, {"text": text, "filler": filler}

    source, target = write(tmp_path / "in.jsonl", *numbered(count)), tmp_path / "out.jsonl"
    kills, whole_lines = 0, 0
    with CountingServer(script) as server:
        command = [sys.executable, "-m", "triptych.cli", "batch", str(source), str(target), "--url", server.url]
        while True:
            process = subprocess.Popen([*command, "--concurrency", "8"], stderr=subprocess.PIPE, text=True)
            if kills < 12:
                _wait_for_progress(target, whole_lines, process)
                time.sleep(seconds.uniform(0, 0.06))
                process.kill()
                kills += 1
            _, told = process.communicate(timeout=60)
            assert process.returncode in (0, -9), told
            lines_now = target.read_bytes().count(b"\n") if target.exists() else 0
            assert lines_now >= whole_lines, "a line that was there is gone"
            whole_lines = lines_now
            if process.returncode == 0:
                break
    assert kills >= 6
    assert read(target).keys() == {f"q{index}" for index in range(count)}
    # What was on its way when a kill came is asked again, and nothing else.
    assert sum(server.asked.values()) <= count + 8 * kills


def _wait_for_progress(target: Path, whole_lines: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        if target.exists() and target.read_bytes().count(b"\n") > whole_lines:
            return
        time.sleep(0.005)
