"""Routers that stand still, read nothing or answer late: they are ended, and hold up nobody meanwhile."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from triptych.cluster import router_slot
from triptych.cluster.routers import RouterProcesses
from triptych.config import RouterSettings, ServeSettings, Settings
from triptych.errors import ConfigError
from triptych.models.card import load_card
from triptych.router.pulses import Pulses
from triptych.router.server import RouterServer

LIVENESS_SECONDS = 60.0
SHORT_SECONDS = 2.0  # in place of what a router is given before it is ended

# In the place of a router: each answer comes only once the next question does.
LATE = """
import json, socket, sys

control = socket.socket(fileno=int(sys.argv[sys.argv.index("--control") + 1]))
before = None
for line in control.makefile("r"):
    message = json.loads(line)
    if "ask" in message:
        if before is not None:
            control.sendall(json.dumps({"answer": before["number"], "value": "late"}).encode() + b"\\n")
        before = message
"""


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIVENESS_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def made(told: list[str], count: int = 2) -> RouterProcesses:
    settings = Settings(serve=ServeSettings(routers=count), router=RouterSettings(port=0, drain_seconds=0.5))
    return RouterProcesses(settings, told.append)


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def routers(told: list[str]) -> Iterator[RouterProcesses]:
    routers = made(told)
    routers.start()
    try:
        routers.pids(LIVENESS_SECONDS)
        yield routers
    finally:
        routers.stop()


def router_pids() -> list[int]:
    """Of this process's children, without asking anybody who would look after them by the way."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has ended
            if "triptych.router.router_process" in child.cmdline():
                found.append(child.pid)
    return found


def connected_to(pid: int, port: int) -> socket.socket:
    """A client of that router: each new one goes to whichever has fewest."""
    clients: list[socket.socket] = []
    while True:
        clients.append(socket.create_connection(("127.0.0.1", port), timeout=LIVENESS_SECONDS))
        clients[-1].sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b'{"status":"ok"}'):  # so some router has it
            piece = clients[-1].recv(4096)
            assert piece
            answer += piece
        links = psutil.Process(pid).net_connections("tcp")
        if any(link.raddr and link.raddr.port == clients[-1].getsockname()[1] for link in links):
            return clients[-1]


def test_a_router_that_is_stopped_is_ended_with_its_connections_and_another_takes_its_place(
    routers: RouterProcesses, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_slot, "SILENT_SECONDS", SHORT_SECONDS)
    stopped, other = routers.pids(LIVENESS_SECONDS)
    with connected_to(stopped, routers.port) as client:
        os.kill(stopped, signal.SIGSTOP)
        client.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        try:
            assert client.recv(100) == b""
        except ConnectionResetError:
            pass  # it had not read what was sent
    until(lambda: f"router-0 is down (its event loop has stood still for {SHORT_SECONDS:g} s)" in "".join(told))
    after = routers.pids(LIVENESS_SECONDS)
    assert after[1] == other
    assert after[0] != stopped
    assert not psutil.pid_exists(stopped), "it is buried, too"


def test_a_router_that_is_stopped_before_it_listens_is_ended(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_slot, "START_SECONDS", SHORT_SECONDS)
    routers = made(told, count=1)
    routers.start()
    try:
        os.kill(*router_pids(), signal.SIGSTOP)
        with pytest.raises(ConfigError, match="router could not start: it did not start within 2 s"):
            routers.pids(LIVENESS_SECONDS)
    finally:
        routers.stop()


def test_one_that_reads_nothing_holds_up_nobody_and_is_ended(
    routers: RouterProcesses, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_slot, "_DEAF_SECONDS", SHORT_SECONDS)
    os.kill(routers.pids(LIVENESS_SECONDS)[0], signal.SIGSTOP)
    began = time.monotonic()
    for number in range(400):  # of which its socket takes a part
        routers.tell_coming([{"worker_id": "encode-0", "roles": ["encode"], "note": f"{number} " + "x" * 1000}])
    assert time.monotonic() - began < 1.5  # one that waits for it does so for two seconds, each time
    until(lambda: f"router-0 is down (it has read nothing that it was told for {SHORT_SECONDS:g} s)" in "".join(told))
    routers.pids(LIVENESS_SECONDS)


def test_a_stopped_router_is_not_waited_for_at_the_end(
    routers: RouterProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_slot, "SILENT_SECONDS", SHORT_SECONDS)
    os.kill(routers.pids(LIVENESS_SECONDS)[1], signal.SIGSTOP)
    began = time.monotonic()
    routers.stop()
    assert time.monotonic() - began < 6.0  # seven beside what answers get, else


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_ones(
    tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script, stand_in = tmp_path / "late.py", tmp_path / "python"
    script.write_text(LATE)
    stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    routers = made(told, count=1)
    routers.start()
    try:
        assert routers.ask("workers", seconds=SHORT_SECONDS) == [None]
        assert routers.ask("workers", seconds=SHORT_SECONDS) == [None], "what has come answers the first question"
    finally:
        routers.stop()


def test_routers_are_kept_though_nobody_reads_what_is_told_of_them(routers: RouterProcesses) -> None:
    def tell(text: str) -> None:
        if threading.current_thread().name == "routers":
            raise BrokenPipeError

    for slot in routers._slots:
        slot._progress = tell
    lost = routers.pids(LIVENESS_SECONDS)[0]
    os.kill(lost, signal.SIGKILL)
    until(lambda: lost not in router_pids())
    until(lambda: len(router_pids()) == 2)


def test_a_loop_that_hangs_falls_silent_while_its_process_goes_on() -> None:
    memory = os.memfd_create("pulses")
    os.ftruncate(memory, Pulses.num_bytes(2))
    pulses = Pulses(memory, 2)
    os.close(memory)
    server = RouterServer(
        Settings(router=RouterSettings(port=0)), load_card("tiny-vl", "float32"), beat=lambda: pulses.beat(1)
    )
    server.start()
    is_hung, goes_on = threading.Event(), threading.Event()

    def hang() -> None:
        is_hung.set()
        goes_on.wait(LIVENESS_SECONDS)

    assert server._loop is not None
    server._loop.call_soon_threadsafe(hang)
    assert is_hung.wait(LIVENESS_SECONDS)
    last = pulses.last(1)
    assert last > 0.0
    time.sleep(1.0)  # two beats
    assert pulses.last(1) == last
    goes_on.set()
    until(lambda: pulses.last(1) > last)
    assert pulses.last(0) == 0.0, "nobody else's"
    server.stop()
