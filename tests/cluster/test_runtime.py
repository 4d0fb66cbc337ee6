"""A Ray of our own, on machines where it takes its time."""

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
from triptych.errors import InternalError


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
