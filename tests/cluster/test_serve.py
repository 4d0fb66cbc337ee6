"""`triptych serve` where it cannot start, or is told not to."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import ray

from triptych.cli import main


@pytest.mark.parametrize("text", [None, "no TOML", "[[keys]]\ntenant = 5\n"])
def test_keys_that_cannot_be_read_are_one_clean_line_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    file = tmp_path / "keys.toml"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("TRIPTYCH_ROUTER_API_KEYS_FILE", str(file))
    assert main(["serve", "--port", "0"]) == 2
    _, reason = capsys.readouterr().err.splitlines()  # behind the model's name
    assert reason.startswith("triptych serve: ")
    assert reason.count(str(file)) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--kv-bytes", "100"], r"language.kv_bytes is 100, expected at least \d+, which is 2 blocks of 16 tokens"),
        (["--gpu-share", "foo=0.2"], "serve.gpu_shares: 'foo' is no role of topology"),
        (["--gpu-share", "foo=0.2", "--device", "cpu"], "serve.gpu_shares: 'foo' is no role of topology"),
        (["--gpu-share", "encode=3"], r"serve.gpu_shares is 'encode=3', expected ROLE=SHARE, a share above 0"),
        (["--device", "cuda"], "serve.device is 'cuda', but Ray sees no GPU; use --device cpu"),
        (["--media-root", "/no/such"], "router.media_roots has '/no/such': No such file or directory, expected a fol"),
        (["--chat-template", "/no/such"], "router.chat_template is '/no/such', which cannot be read: .*No such file"),
        (
            ["--chat-template", "TEMPLATE"],
            "router.chat_template is '.*': .* template cannot be compiled",
        ),
        (["--encoders", "9" * 21], "1e\\+21 workers are too many; serve.max_workers is 64"),
        (["--decodes", "63"], "65 workers are too many; serve.max_workers is 64"),
        (["--host", "\udcff"], r"cannot listen on '\\udcff', which is no host's name or address: "),
        (["/no/such/model"], "serve.model is '/no/such/model': no such folder, expected one, a hub id or 'tiny-vl'"),
        (["--port", "PORT"], r"cannot listen on 127.0.0.1:\d+ \(Address already in use\); name another --port"),
        (
            ["--admin-port", "PORT"],
            r"cannot listen on 127.0.0.1:\d+ \(Address already in use\); name another --admin-p",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_in_a_line_before_anything_is_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(ray, "init", None)
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = {"PORT": str(taken.getsockname()[1]), "TEMPLATE": str(template)}
        defaults = [] if "--port" in arguments else ["--port", "0"]
        assert main(["serve", *defaults, *(words.get(word, word) for word in arguments)]) == 2
    captured = capsys.readouterr()
    reason = [line for line in captured.err.splitlines() if not line.startswith("model ")]
    assert len(reason) == 1, reason
    assert re.match(f"triptych serve: {told}", reason[0])
    assert captured.out == ""


def test_traces_without_their_packages_are_refused_in_a_line_that_says_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIPTYCH_OBSERVE_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setattr(ray, "init", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp", None)  # as where it is not installed
    for name in [name for name in sys.modules if name.startswith("opentelemetry.exporter.otlp.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "triptych.router.observe.otlp", raising=False)
    assert main(["serve", "--port", "0"]) == 2
    (reason,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("model ")]
    assert re.match(r"triptych serve: observe.otlp_endpoint .* pip install 'triptych\[otel\]'", reason)


START_SECONDS = 120.0  # a liveness bound


def test_equal_lines_of_two_workers_are_two_lines() -> None:
    asked = "import triptych.cluster.serve, ray._private.ray_constants as constants; print(constants.RAY_DEDUP_LOGS)"
    environment = {name: value for name, value in os.environ.items() if name != "RAY_DEDUP_LOGS"}
    assert subprocess.check_output([sys.executable, "-c", asked], env=environment, text=True) == "False\n"


@pytest.mark.parametrize("times", [1, 2])
def test_a_sigterm_while_its_workers_start_ends_it_with_the_status_of_an_interruption(times: int) -> None:
    """A second one does not cut off how it ends what it has started."""
    command = [sys.executable, "-m", "triptych.cli", "serve", "--device", "cpu", "--port", "0"]
    environment = os.environ | {"TRIPTYCH_SERVE_RAY": "local"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        watchdog = threading.Timer(START_SECONDS, process.kill)
        watchdog.start()
        assert process.stderr is not None
        told = next((line for line in process.stderr if line.startswith("Ray started")), "")
        process.send_signal(signal.SIGTERM)
        told_then = next(process.stderr)  # by its router: it is ending what it has started
        for _ in range(times - 1):
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
        watchdog.cancel()
    assert told
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in told_then + err
    assert "SIGTERM" not in told_then + err


TOLD_TO_NOBODY = """
import sys
from triptych.cluster.serve import Terminal

terminal = Terminal()
sys.stdin.read()
for word in ("one", "two"):
    terminal.say(word)
print("goes on")
"""


def test_a_server_whose_words_nobody_reads_goes_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TOLD_TO_NOBODY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        process.stderr.close()  # as where Ctrl-C has ended the pager, or `tee`, as well
        out, _ = process.communicate(timeout=START_SECONDS)
    assert (process.returncode, out) == (0, b"goes on\n")


def test_each_line_is_an_object_where_json_is_asked_for_and_names_its_process() -> None:
    command = [sys.executable, "-m", "triptych.cli", "serve", "--device", "cpu", "--port", "0", "--log-format", "json"]
    environment = os.environ | {"TRIPTYCH_SERVE_RAY": "local", "TRIPTYCH_LANGUAGE_KV_BYTES": str(64 << 20)}
    with tempfile.TemporaryFile("w+") as log:
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            watchdog = threading.Timer(START_SECONDS, process.kill)
            watchdog.start()
            assert process.stdout is not None
            ready = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            process.wait()
            watchdog.cancel()
        log.seek(0)
        lines = log.read().splitlines()
    assert ready.startswith("Triptych is ready"), lines[-20:]
    told = [json.loads(line) for line in lines]
    assert {"serve", "router-0", "encode-0", "prefill-0", "decode-0"} == {line["process"] for line in told}
    # Lines that are alike but for a name or a number are told of each process: Ray would make one of them.
    loaded = [line["process"] for line in told if re.match("worker .* ready on cpu", line["message"])]
    assert sorted(loaded) == ["decode-0", "encode-0", "prefill-0"]
