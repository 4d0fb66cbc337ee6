"""The commands a user types, as processes of their own."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.journey.conversations import picture, png
from tests.journey.messages import image, user

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "tests/data"
READY_SECONDS = 150.0
STOP_SECONDS = 60.0


class Serving:
    """`triptych serve` in a process, and what it printed when it was ready."""

    def __init__(self, *flags: str) -> None:
        environment = {**os.environ, "TRIPTYCH_SERVE_RAY": "local", "TRIPTYCH_LANGUAGE_KV_BYTES": str(64 << 20)}
        command = [sys.executable, "-m", "triptych.cli", "serve", "--port", "0", "--device", "cpu", *flags]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), True)
        self.ready_line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", self.ready_line)
        assert found, f"no ready line: {self.ready_line!r} {self.errors()}"
        self.url = found.group()

    def errors(self) -> str:
        self.process.kill()
        return self.process.communicate()[1]

    def descendants(self) -> set[int]:
        """Every process below this one."""
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                parents[int(entry.name)] = int(fields[1])
        below: set[int] = set()
        frontier = {self.process.pid}
        while frontier:
            frontier = {pid for pid, parent in parents.items() if parent in frontier}
            below |= frontier
        return below


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    serving = Serving()
    yield serving
    if serving.process.poll() is None:
        serving.process.send_signal(signal.SIGINT)
        serving.process.wait(timeout=STOP_SECONDS)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "triptych.cli", *arguments]
    environment = {**os.environ, "TRIPTYCH_SERVE_RAY": "local"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=environment)


def test_one_line_says_that_it_is_ready(serving: Serving) -> None:
    assert serving.ready_line.startswith("Triptych is ready on http://127.0.0.1:")
    assert "encode-0, prefill-0, decode-0" in serving.ready_line
    assert httpx.get(f"{serving.url}/health", trust_env=False).status_code == httpx.codes.OK


def test_ask_answers_a_question_about_a_picture(serving: Serving) -> None:
    asked = run("ask", "--url", serving.url, "--image", str(PICTURES / "sign-selfie.png"), "What does the picture say?")
    assert asked.stdout == "selfie\n"
    assert asked.returncode == 0
    timed = run(
        "ask", "--url", serving.url, "--timeline", "--image", str(PICTURES / "two-shapes.png"), "What is on the left?"
    )
    assert timed.stdout.startswith("red circle\n")
    for stage in ("tokenize", "preprocess", "encode", "transfer", "prefill", "handover", "decode"):
        assert stage in timed.stdout
    request_id = timed.stdout.splitlines()[-1].removeprefix("request ")
    again = run("timeline", request_id, "--url", serving.url)
    assert again.returncode == 0, again.stderr
    assert "finished" in again.stdout


def test_ask_says_what_is_wrong(serving: Serving) -> None:
    missing = run("ask", "--url", serving.url, "--image", "no-such.png", "What?")
    assert missing.returncode == 2
    assert "no-such.png" in missing.stderr
    nobody = run("ask", "--url", "http://127.0.0.1:9", "What?")
    assert nobody.returncode == 1
    assert "make serve" in nobody.stderr


def test_status_shows_every_worker(serving: Serving) -> None:
    status = run("status", "--url", serving.url)
    assert status.returncode == 0
    for word in ("encode-0", "prefill-0", "decode-0", "ready"):
        assert word in status.stdout


def test_the_openai_client_gets_an_answer_streamed_and_not(serving: Serving) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none")
    messages = [user(image((PICTURES / "two-shapes.png").read_bytes()), "What is on the left?")]
    whole = client.chat.completions.create(model="tiny-vl", messages=messages, temperature=0)
    assert whole.choices[0].message.content == "red circle"
    stream = client.chat.completions.create(model="tiny-vl", messages=messages, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "red circle"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny-vl", messages=[user(image(b"no image"), "What?")])
    assert refused.value.code == "invalid_image" or refused.value.code == "unsupported_image_format"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=messages)


def test_the_demo_gets_right_answers_and_shows_where_the_time_went() -> None:
    shown = run("demo")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "4 of 4 answers are as expected" in shown.stdout
    assert shown.stdout.count("prefill") >= 4


def test_a_taken_port_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        began = time.monotonic()
        refused = run("serve", "--port", port, "--device", "cpu")
    assert refused.returncode == 2
    assert port in refused.stderr
    assert "--port" in refused.stderr
    assert time.monotonic() - began < 30


def test_a_folder_that_is_no_model_is_said_at_once(tmp_path: Path) -> None:
    refused = run("serve", str(tmp_path), "--port", "0", "--device", "cpu")
    assert refused.returncode == 2
    assert "config.json" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("[router]\nprot = 9000\n", "router.port"),
        ("[router]\nport = 99999\n", "65535"),
        ("[router]\nallow_media_ports = 18200\n", "a list"),
        ('[router]\nallow_media_cidrs = ["127.0.0.1/8"]\n', "127.0.0.0/8"),
        ('[router]\nlog_level = "loud"\n', "warning"),
        ("[language]\nblock_size = 0\n", "above 0"),
        ("[encoder]\narena_bytes = -5\n", "above 0"),
        ("[transfer]\nchecksums = 3\n", "bool"),
        ("[ruoter]\nport = 1\n", "router.port"),
    ],
)
def test_a_setting_that_cannot_work_is_said_at_once(tmp_path: Path, file: str, told: str) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(file)
    refused = run("serve", "--config", str(config), "--device", "cpu")
    assert refused.returncode == 2
    assert told in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_misspelt_environment_variable_is_not_ignored() -> None:
    command = [sys.executable, "-m", "triptych.cli", "serve", "--device", "cpu"]
    environment = {**os.environ, "TRIPTYCH_ROUTER_PROT": "9000"}
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert refused.returncode == 2
    assert "TRIPTYCH_ROUTER_PORT" in refused.stderr


def test_ctrl_c_ends_everything_it_started_and_nothing_else(serving: Serving) -> None:
    """Last: it ends the server that the tests above share."""
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        below = serving.descendants()
        assert len(below) > 4
        body = {"model": "tiny-vl", "messages": [user(image(png(picture(1, (112, 112)))), "What?")], "max_tokens": 4}
        assert httpx.post(f"{serving.url}/v1/chat/completions", json=body, timeout=60, trust_env=False).is_success
        serving.process.send_signal(signal.SIGINT)
        assert serving.process.wait(timeout=STOP_SECONDS) == 0
        deadline = time.monotonic() + STOP_SECONDS
        while left := {pid for pid in below if _alive(pid)}:
            assert time.monotonic() < deadline, f"still alive: {left}"
            time.sleep(0.1)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def _alive(pid: int) -> bool:
    """Whether the process runs; one that waits for its parent to look does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
