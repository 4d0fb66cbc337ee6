"""Routers without workers: how they begin and end."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

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
