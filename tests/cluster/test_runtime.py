"""A Ray of our own, on machines where it takes its time."""

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from triptych.cluster.runtime import RayRuntime
from triptych.errors import ConfigError, InternalError


@contextmanager
def raylet(resources: str, address: str) -> Iterator[psutil.Process]:
    """A process that looks like Ray's, of a Ray with these resources."""
    script = "import sys; print(flush=True); sys.stdin.read()"
    words = ["/site/ray/raylet", "-c", script, f"--static_resource_list={resources}"]
    words.append(f"python worker.py --gcs-address={address} --temp-dir=/tmp/ray")
    pipe = subprocess.PIPE
    with subprocess.Popen(words, executable=sys.executable, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()  # its command line can be read from now on
        yield psutil.Process(process.pid)


def test_a_ray_that_is_another_servers_own_is_never_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joining it only to see that hung where that server was about to end."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    asked: list[str] = []
    monkeypatch.setattr(ray, "init", lambda **options: asked.append(options["address"]))
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        own = stack.enter_context(raylet("triptych_private,1,node:127.0.0.1,1.0,CPU,2", address))
        ended = stack.enter_context(raylet("node:127.0.0.1,1.0,CPU,2", "127.0.0.1:1"))

        def only(*processes: psutil.Process) -> None:
            def them(attributes: list[str]) -> list[psutil.Process]:
                for process in processes:
                    process.info = process.as_dict(attributes)
                return list(processes)

            monkeypatch.setattr(psutil, "process_iter", them)

        only(own, ended)
        assert RayRuntime("auto").started_here
        only(own, ended, stack.enter_context(raylet("node:127.0.0.1,1.0,CPU,2", address)))
        assert not RayRuntime("auto").started_here
    assert asked == ["local", address]


class SlowRay:
    """`ray.init` on a machine where the first starts take too long; each leaves a process, as Ray does."""

    def __init__(self, num_slow: int) -> None:
        self.num_slow = num_slow
        self.starts: list[dict[str, Any]] = []
        self.left: list[psutil.Process] = []

    def init(self, **options: Any) -> None:
        self.starts.append(options)
        if len(self.starts) > self.num_slow:
            return
        script = "import sys; print(flush=True); sys.stdin.read()"
        command = [sys.executable, "-c", script, str(Path(ray.__file__).parent / "raylet")]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()  # its command line can be read from now on
        self.left.append(psutil.Process(child.pid))
        raise Exception("The current node timed out during startup")


def test_a_ray_that_did_not_come_up_in_time_is_ended_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowRay(num_slow=2)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", slow.init)
    assert RayRuntime("local").started_here
    assert len(slow.starts) == 3
    assert len(slow.left) == 2
    assert not any(process.is_running() for process in slow.left)


def test_a_ray_that_never_comes_up_is_an_error_that_says_what_ray_said(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowRay(num_slow=99)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", slow.init)
    with pytest.raises(InternalError, match="Ray did not start: The current node timed out"):
        RayRuntime("local")
    assert not any(process.is_running() for process in slow.left)


@pytest.mark.parametrize("variable", ["RAY_TMPDIR", "TMPDIR"])
def test_a_disk_that_is_full_is_told_before_ray_waits_for_its_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    usage = shutil.disk_usage(tmp_path)

    def usage_of(folder: Path) -> Any:
        return usage._replace(free=4096 if folder == tmp_path else 1 << 30)

    monkeypatch.setattr(shutil, "disk_usage", usage_of)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", None)
    monkeypatch.setenv(variable, str(tmp_path))
    with pytest.raises(ConfigError, match=f"{tmp_path} has 4 KiB left, .*; make room there, or let {variable} name"):
        RayRuntime("local")


ASKED_AT_THE_END = """
import ray
from ray.exceptions import RaySystemError
from triptych.cluster.runtime import RayRuntime

ray.init = lambda **options: None  # to have started one is as good as to have closed it
RayRuntime("local").close()
try:
    ray.wait([], timeout=0)
except RaySystemError as error:
    print(error)
"""


def test_whoever_asks_ray_once_it_was_closed_starts_no_other_ray() -> None:
    """As the thread that keeps the workers may, while its server ends."""
    command = [sys.executable, "-c", ASKED_AT_THE_END]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "Ray has not been started yet" in ended.stdout


def test_rays_handler_of_sigterm_does_not_outlast_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []

    def ours(number: int, frame: Any) -> None:
        told.append(number)

    def rays(number: int, frame: Any) -> None:
        sys.exit(number)

    def init(**options: Any) -> None:
        signal.signal(signal.SIGTERM, rays)
        if told_at_once:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    before = signal.signal(signal.SIGTERM, ours)
    try:
        told_at_once = False
        RayRuntime("local")
        assert signal.getsignal(signal.SIGTERM) is ours
        told_at_once = True
        with pytest.raises(SystemExit):
            RayRuntime("local")
        assert signal.getsignal(signal.SIGTERM) is ours
        assert told == [signal.SIGTERM], "whoever waits for it learns of one that came while Ray started"
    finally:
        signal.signal(signal.SIGTERM, before)
