"""Workers in a Ray that was joined: they outlive the server that started them, and the next one takes them over."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.journey.messages import user
from tests.processes import toml_of
from tests.served import shown
from triptych.cluster.detached import _GONE_SECONDS
from triptych.config import MIB

KEY = "operator-of-this-test"
HEADERS = {"authorization": f"Bearer {KEY}"}
START_SECONDS = 120.0  # liveness bounds
END_SECONDS = 30.0
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "serve": {"served_name": "m", "topology": "e+pd", "device": "cpu", "cpu_threads": 1},
    "router": {"port": 0, "api_key": KEY, "log_level": "warning"},
    "encoder": {"arena_bytes": 32 * MIB},
    "language": {"kv_bytes": 64 * MIB, "landing_bytes": 32 * MIB},
}

# A Ray asks those who join it for its token.
ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}

# Named differently from Ray's own start commands, whose `ray stop` would end every Ray of this machine.
OWNER = """
import sys
import ray

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""

# What a server does first, at a word; then it ends in order.
ATTACHER = """
import sys
from pathlib import Path
from triptych.cluster.detached import DetachedCrew
from triptych.cluster.runtime import RayRuntime
from triptych.config import load_settings

settings = load_settings(Path(sys.argv[1]))
runtime = RayRuntime(settings.serve.ray, False, 1, f"triptych-{settings.serve.cluster}")
print("joined", flush=True)
sys.stdin.readline()
crew = DetachedCrew(settings)
print("new" if crew.is_new else "taken over", flush=True)
crew.stop()
runtime.close()
"""


@dataclass(frozen=True)
class JoinedRay:
    """Where it is, and the process whose descendants all of its actors are."""

    address: str
    owner: psutil.Process

    def crew(self) -> psutil.Process:
        (found,) = self.actors("CrewActor")
        return found

    def actors(self, name: str) -> list[psutil.Process]:
        return [each for each in self.owner.children(recursive=True) if f"ray::{name}" in " ".join(_words(each))]


@pytest.fixture(scope="module")
def joined() -> Iterator[JoinedRay]:
    """A Ray that is nobody's server's own."""
    command, environment = [sys.executable, "-c", OWNER], os.environ | ENVIRONMENT
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        yield JoinedRay(owner.stdout.readline().decode().strip(), psutil.Process(owner.pid))
        assert owner.stdin is not None
        owner.stdin.close()
        owner.wait(END_SECONDS)


class Server:
    """`triptych serve`, in a process of its own; `url` once it is ready."""

    def __init__(self, ray_address: str, config: Path, *, waits: bool = True, **environment: str) -> None:
        command = [sys.executable, "-m", "triptych.cli", "serve", "--config", str(config)]
        told = {"TRIPTYCH_SERVE_RAY": ray_address, **ENVIRONMENT, **environment}
        self.log: list[str] = []
        self.process = subprocess.Popen(
            command, env=os.environ | told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        threading.Thread(target=self.log.extend, args=(self.process.stderr,), daemon=True).start()
        self.url = ""
        if waits:
            self.wait()

    def wait(self) -> None:
        """Until it is ready, or has failed."""
        watchdog = threading.Timer(START_SECONDS, self.process.kill)
        watchdog.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        watchdog.cancel()
        self.url = line.split()[4].removesuffix("/v1") if line.startswith("Triptych is ready on") else ""

    def wait_for(self, words: str) -> None:
        """Until it has said so."""
        _until(lambda: any(words in line for line in self.log))

    def ask(self) -> str:
        body = {"model": "m", "messages": [user(shown(), "What is it?")], "temperature": 0, "max_tokens": 8}
        response = httpx.post(
            f"{self.url}/v1/chat/completions", json=body, headers=HEADERS, timeout=60, trust_env=False
        )
        assert response.status_code == httpx.codes.OK, response.text
        text: str = response.json()["choices"][0]["message"]["content"]
        return text

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path, headers=HEADERS, timeout=30, trust_env=False).json()

    def scale(self, **counts: int) -> None:
        """Returns once it is so."""
        told = httpx.post(f"{self.url}/admin/scale", json=counts, headers=HEADERS, timeout=30, trust_env=False)
        assert told.status_code == httpx.codes.OK, told.text
        deadline = time.monotonic() + START_SECONDS
        while not self.get("/admin/scale")["settled"]:
            assert time.monotonic() < deadline, self.get("/admin/scale")
            time.sleep(0.1)

    def pids(self) -> dict[str, int]:
        """Of the workers."""
        return {worker["worker_id"]: worker["pid"] for worker in self.get("/v1/cluster")["workers"]}

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(END_SECONDS)


def _until(holds: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_workers_outlive_their_server_and_end_with_the_last_one_that_ends_in_order(
    joined: JoinedRay, tmp_path: Path
) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(toml_of(SETTINGS))
    first = Server(joined.address, config)
    assert first.url, first.log
    answer, pids = first.ask(), first.pids()
    assert set(pids) == {"encode-0", "pd-0"}
    first.end(signal.SIGKILL)

    # On the same port, which the first one's routers have until they have noticed.
    second = Server(joined.address, config, TRIPTYCH_ROUTER_PORT=first.url.rpartition(":")[2])
    assert second.url, second.log
    assert second.pids() == pids, "nothing was started a second time"
    assert second.ask() == answer
    second.scale(encode=2)

    other = Server(joined.address, config, TRIPTYCH_SERVE_DTYPE="bfloat16")
    assert not other.url
    assert any("serve.dtype is 'auto' there and 'bfloat16' here" in line for line in other.log), other.log

    crew = joined.crew()
    crew.kill()
    crew.wait(END_SECONDS)
    assert second.ask() == answer, "requests do not need it"
    lost = second.pids()["encode-1"]
    os.kill(lost, signal.SIGKILL)
    deadline = time.monotonic() + START_SECONDS
    while second.pids().get("encode-1", lost) in (lost, 0) or not second.get("/admin/scale")["settled"]:
        assert time.monotonic() < deadline, second.get("/admin/scale")
        time.sleep(0.1)
    assert second.get("/admin/scale")["groups"] == {
        "encode": {"wanted": 2, "ready": 2},
        "pd": {"wanted": 1, "ready": 1},
    }
    assert second.ask() == answer
    kept = second.pids()
    assert {name: kept[name] for name in pids} == pids

    third = Server(joined.address, config)
    assert third.url, third.log
    assert third.pids() == kept, "two servers may have the same workers"
    second.end(signal.SIGTERM)
    assert third.ask() == answer, "which are ended by the last"
    third.end(signal.SIGTERM)
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in kept.values() if psutil.pid_exists(pid)], END_SECONDS)
    assert not alive


@pytest.mark.slow
def test_a_server_that_waits_for_its_port_is_attached_all_the_time(joined: JoinedRay, tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(toml_of(SETTINGS))
    first = Server(joined.address, config)
    assert first.url, first.log
    pids = first.pids()
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        second = Server(joined.address, config, waits=False, TRIPTYCH_ROUTER_PORT=str(port))
        second.wait_for("is taken over as it is")
        time.sleep(_GONE_SECONDS + 0.5)
        first.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            first.process.wait(3.0)  # the second one gives up a moment later
    second.wait()
    assert second.url, second.log
    assert second.pids() == pids
    assert second.ask()
    second.end(signal.SIGTERM)


@pytest.mark.slow
def test_whoever_comes_while_a_cluster_is_ended_begins_the_next_one(joined: JoinedRay, tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(toml_of(SETTINGS))
    first = Server(joined.address, config)
    assert first.url, first.log
    workers = {worker["worker_id"]: worker for worker in first.get("/v1/cluster")["workers"]}
    environment = os.environ | ENVIRONMENT | {"TRIPTYCH_SERVE_RAY": joined.address}
    command = [sys.executable, "-c", ATTACHER, str(config)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as attacher:
        assert attacher.stdin is not None
        assert attacher.stdout is not None
        assert attacher.stdout.readline() == "joined\n"
        os.kill(workers["pd-0"]["pid"], signal.SIGSTOP)  # one that does not hear that it is to stop takes a while
        first.process.send_signal(signal.SIGTERM)
        _until(lambda: not _listens(workers["encode-0"]["address"]))
        attacher.stdin.write("now\n")
        attacher.stdin.flush()
        assert attacher.stdout.readline() == "new\n"
    first.process.wait(END_SECONDS)
    _until(lambda: not joined.actors("CrewActor"), END_SECONDS)


@pytest.mark.slow
def test_a_server_that_is_interrupted_while_it_begins_a_cluster_leaves_nothing(
    joined: JoinedRay, tmp_path: Path
) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(toml_of(SETTINGS))
    server = Server(joined.address, config, waits=False)
    server.wait_for("joined, it was running already")
    time.sleep(0.2)  # it asks for the actor, which takes seconds to start
    server.end(signal.SIGINT)
    time.sleep(2.0)
    _until(lambda: not joined.actors("CrewActor"), END_SECONDS)
    assert not joined.actors("WorkerActor")
