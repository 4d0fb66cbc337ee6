"""Routers without workers: how they begin and end."""

import base64
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from triptych.cluster import router_slot
from triptych.cluster.routers import RouterProcesses
from triptych.config import RouterSettings, ServeSettings, Settings
from triptych.errors import ConfigError

START_SECONDS = 30.0
# Longer than a router takes to end for want of a supervisor, answers that are being written included.
END_SECONDS = 20.0

OWNER = """
import sys
from triptych.cluster.routers import RouterProcesses
from triptych.config import RouterSettings, ServeSettings, Settings

routers = RouterProcesses(Settings(serve=ServeSettings(routers=2), router=RouterSettings(port=0)), lambda text: None)
routers.start()
print(routers.metrics_folder, *routers.pids(30.0), flush=True)
sys.stdin.read()
"""


def test_routers_end_with_a_supervisor_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        folder, *pids = owner.stdout.readline().decode().split()
        routers = [psutil.Process(int(pid)) for pid in pids]
        assert len(routers) == 2
        os.kill(owner.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(routers, END_SECONDS)
    for process in alive:
        process.kill()
    assert not alive
    assert not Path(folder).exists()


def test_a_port_that_is_taken_is_named_before_anything_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port} .*--port"):
            RouterProcesses(Settings(router=RouterSettings(port=port)), lambda text: None)


def test_a_router_that_cannot_start_tells_why() -> None:
    settings = Settings(serve=ServeSettings(model="/no/such/folder"), router=RouterSettings(port=0))
    routers = RouterProcesses(settings, lambda text: None)
    routers.start()
    try:
        with pytest.raises(ConfigError, match=r"router could not start: .*/no/such/folder"):
            routers.pids(START_SECONDS)
    finally:
        routers.stop()


def test_a_router_for_which_no_process_can_be_had_just_now_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_slot, "_LONGEST_WAIT_SECONDS", 0.5)
    told: list[str] = []
    routers = RouterProcesses(Settings(router=RouterSettings(port=0)), told.append)
    routers.start()
    try:
        (lost,) = routers.pids(START_SECONDS)
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(sys, "executable", "/no/such/python")
            os.kill(lost, signal.SIGKILL)
            deadline = time.monotonic() + START_SECONDS
            while not any("router was not started, in 0.5 s again" in line for line in told):
                assert time.monotonic() < deadline
                time.sleep(0.02)
        assert routers.pids(START_SECONDS) != [lost]
    finally:
        routers.stop()


ALICE = {"authorization": "Bearer alice"}
CHAT = "/v1/chat/completions"


@pytest.fixture
def routers() -> Iterator[RouterProcesses]:
    """Three, and one key, which they tell when it is one of them; without workers they answer 503 at most."""
    settings = Settings(
        serve=ServeSettings(routers=3, served_name="m"),
        router=RouterSettings(
            port=0, api_keys_file=str(Path(__file__).parent / "keys.toml"), stage_timeout_seconds=60.0
        ),
    )
    routers = RouterProcesses(settings, lambda text: None)
    routers.start()
    try:
        routers.pids(START_SECONDS)
        yield routers
    finally:
        routers.stop()


def asked(routers: RouterProcesses, **message: Any) -> httpx.Response:
    """By a connection of its own, which the router with the fewest takes."""
    body = {"model": "m", "messages": [{"role": "user", **message}]}
    return httpx.post(f"http://127.0.0.1:{routers.port}{CHAT}", json=body, headers=ALICE, timeout=20, trust_env=False)


class Held:
    """A request that is being sent for as long as it is held."""

    def __init__(self, routers: RouterProcesses) -> None:
        self._socket = socket.create_connection(("127.0.0.1", routers.port))
        self._socket.sendall(
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer alice\r\ncontent-length: 9\r\n"
            "expect: 100-continue\r\n\r\n".encode()
        )
        self._socket.settimeout(START_SECONDS)
        assert b"100" in self._socket.recv(100)  # it is read, so it has entered
        self._port = self._socket.getsockname()[1]

    def router_of(self, pids: list[int]) -> int:
        for pid in pids:
            connections = psutil.Process(pid).net_connections("tcp")
            if any(each.raddr and each.raddr.port == self._port for each in connections):
                return pid
        raise AssertionError("no router has it")

    def close(self) -> None:
        self._socket.close()


def test_limits_hold_over_all_routers_and_one_that_is_killed_gives_back_what_it_had(routers: RouterProcesses) -> None:
    pids = routers.pids(START_SECONDS)
    first, second = Held(routers), Held(routers)
    while first.router_of(pids) == second.router_of(pids):  # one that was busy had left it to the other
        second.close()
        second = Held(routers)
    refused = [asked(routers, content="hello") for _ in range(4)]  # at the third router, and at the others
    for response in refused:
        assert response.status_code == 429
        assert "may have 2 requests in flight at once" in response.json()["error"]["message"]
    os.kill(first.router_of(pids), signal.SIGKILL)
    deadline = time.monotonic() + START_SECONDS
    while (response := asked(routers, content="hello")).status_code == 429:
        assert time.monotonic() < deadline
    assert response.status_code == 503, response.text  # it was let in, and there are no workers
    assert response.headers["x-ratelimit-limit-requests"] == "600"
    second.close()
    first.close()


def test_an_image_that_one_router_knows_by_name_all_know(routers: RouterProcesses) -> None:
    picture = (Path(__file__).parent.parent / "data" / "red-circle.png").read_bytes()
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    sent = {"type": "image_url", "image_url": {"url": url}, "uuid": "red"}
    named = {"type": "image_url", "image_url": None, "uuid": "red"}
    strange = {"type": "image_url", "image_url": None, "uuid": "blue"}
    assert asked(routers, content=[sent]).status_code == 503  # read, and then there are no workers
    held = [Held(routers)]  # so that others are asked
    assert asked(routers, content=[named]).status_code == 503
    for pid in routers.pids(START_SECONDS):  # one after the other: what they know outlives each of them
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + START_SECONDS
        while pid in routers.pids(START_SECONDS):
            assert time.monotonic() < deadline
    assert asked(routers, content=[named]).status_code == 503
    response = asked(routers, content=[strange])
    assert (response.status_code, response.json()["error"]["code"]) == (400, "image_uuid_unknown")
    held[0].close()
