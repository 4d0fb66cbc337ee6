"""`triptych serve` as a process on a free port of the loopback interface, for the scripts in this folder."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

_START_SECONDS = 590.0
_HEALTH_SECONDS = 60.0
_STOP_SECONDS = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    """Up when the block begins, gone when it ends."""

    def __init__(
        self,
        topology: str,
        model: str,
        flags: Sequence[str] = (),
        extra_body: Mapping[str, Any] = MappingProxyType({}),
        environment: Mapping[str, str] = MappingProxyType({}),
        log: Path | None = None,
    ) -> None:
        """flags: more of `triptych serve`; extra_body: what every request to this server should carry.

        environment: on top of ours; log: where its standard error goes, lines of progress among them
        """
        self.topology = topology
        self.extra_body = extra_body
        self.url = ""
        self.seconds_to_ready = 0.0  # from the command to the first healthy answer
        self._environment = environment
        self._log_path = log
        self._command = [
            sys.executable,
            "-m",
            "triptych.cli",
            "serve",
            model,
            "--topology",
            topology,
            "--port",
            "0",
            *flags,
        ]

    def __enter__(self) -> "Server":
        self._log = tempfile.TemporaryFile("w+") if self._log_path is None else self._log_path.open("w+")
        # A Ray of its own: it must not go away with another server's.
        environment = os.environ | {"TRIPTYCH_SERVE_RAY": "local"} | dict(self._environment)
        began = time.monotonic()
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment
        )
        try:
            self._wait_ready()
        except BaseException:
            self.__exit__()
            raise
        self.seconds_to_ready = time.monotonic() - began
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def _wait_ready(self) -> None:
        assert self._process.stdout is not None
        late = threading.Timer(_START_SECONDS, self._process.terminate)  # ends the loop below, and with it the wait
        late.daemon = True
        late.start()
        for line in self._process.stdout:
            found = re.search(r"(http://\S+?)/v1", line)
            if found:
                self.url = found[1]
                late.cancel()
                break
        else:
            late.cancel()
            raise RuntimeError(f"`triptych serve --topology {self.topology}` ended:\n{self.log_tail(2000)}")
        deadline = time.monotonic() + _HEALTH_SECONDS
        while httpx.get(f"{self.url}/health", trust_env=False).status_code != httpx.codes.OK:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.topology} is not healthy after {_HEALTH_SECONDS:g} s")
            time.sleep(0.1)

    @property
    def pid(self) -> int:
        """Of the command; workers and router are below it."""
        return self._process.pid

    def log_tail(self, characters: int = 4000) -> str:
        """The end of what it has written to its standard error."""
        # Not by seeking: the place in the file is shared with those who write.
        number = self._log.fileno()
        return os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")[-characters:]

    def router_cpu_seconds(self) -> float:
        """CPU time of the routers' processes so far, all their threads."""
        return sum(map(cpu_seconds, processes_answering_on(int(self.url.rpartition(":")[2]))))

    def router_cpu_share(self, seconds: float = 5.0) -> float:
        """CPU seconds per second that the router takes when nobody asks it anything."""
        before = self.router_cpu_seconds()
        time.sleep(seconds)
        return (self.router_cpu_seconds() - before) / seconds


def cpu_seconds(pid: int) -> float:
    """User and system time of a process; steps of 1/100 s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def processes_answering_on(port: int) -> list[int]:
    """The processes that accept on a TCP port of this host: not the one that has made the socket for them."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    holders = set()
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(entry) in sockets for entry in descriptors.iterdir()):
                holders.add(int(descriptors.parent.name))
        except OSError:
            continue  # another user's process, or one that has just ended
    if not holders:
        raise RuntimeError(f"no process listens on port {port}")
    return sorted(pid for pid in holders if len(holders) == 1 or _parent(pid) in holders)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _listening_inodes(port: int) -> list[str]:
    """/proc/net/tcp: local address as hex:hex, state 0A for listening, inode in the tenth column."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port]
