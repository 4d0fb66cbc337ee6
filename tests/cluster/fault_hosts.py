"""Three hosts made of namespaces and a Ray over them: the head, with the server, and two that have workers.

What a host may do that a process cannot: vanish without a word to those it is connected to. And Ray's head may go, and
come again by `ray start` with what it has on disk, as it would under `ray up`, systemd or Kubernetes. The process that
measures lives in the head's network, and in no other of its namespaces.
"""

import ctypes
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from tests.cluster.fault_kinds import Kind, Struck
from tests.cluster.fault_load import FaultLoad
from tests.cluster.fault_server import FaultServer, Patience
from tests.two_hosts.hosts import INTERFACE, PREFIX_BITS, Host, HostProcess, require_hosts
from triptych.journey import Role

HEAD, NODES = "10.77.0.1", ("10.77.0.2", "10.77.0.3")
_SWITCH = "switch"
_COMMAND_SECONDS = 60.0
ANSWERS_MEANWHILE = 4  # one of each stream
# Ray's own folder, where a host's sockets and logs are, is each host's own.
_PREPARE = "mkdir -p /tmp/ray && mount -t tmpfs tmpfs /tmp/ray"
_RAY = str(Path(sys.executable).with_name("ray"))
_TIERS = "{" + ", ".join(f'"triptych_{role}": 1' for role in Role) + "}"
_NEWNET = 0x40000000


class Hosts:
    """`close` ends them all."""

    def __init__(self, folder: Path) -> None:
        """From here on this process is in the head's network. Raises HostsUnavailable."""
        require_hosts()
        self._folder = folder
        self._cables = 0
        self._token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._opened = ExitStack()
        self.nodes: dict[str, Host] = {}
        storage = folder / "gcs"
        storage.mkdir()
        self._persistent = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(storage)}
        try:
            self.head = Host("head", HEAD, _PREPARE)
            self._opened.callback(self.head.close)
            for command in (
                f"link add {_SWITCH} type bridge",
                f"address add {HEAD}/{PREFIX_BITS} dev {_SWITCH}",
                f"link set {_SWITCH} up",
            ):
                self.head.network("ip", *command.split())
            _enter_network(self.head.first_pid)
            self.start_head()
            for address in NODES:
                self.power_on(address)
        except BaseException:
            self.close()
            raise

    @property
    def environment(self) -> dict[str, str]:
        """As deploy/ray/ has it."""
        return {**self._token, "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}

    def start_head(self) -> None:
        """Again where it was, with what it knew. Returns once Ray says that it is there."""
        command = [_RAY, "start", "--head", f"--node-ip-address={HEAD}", "--port=6379", "--num-cpus=0"]
        self._run(self.head, [*command, "--include-dashboard=false"], self._persistent)

    def kill_head(self, *names: str) -> None:
        """Ray's part of it, at once, or only processes of these names; the host and the server go on."""
        for pid in self.head.processes():
            if _name_of(pid) in (names or ("gcs_server", "raylet")):
                os.kill(pid, signal.SIGKILL)

    def stop_head(self) -> None:
        """As its operator does: what is left of Ray there would keep another from starting."""
        self._run(self.head, [_RAY, "stop", "--force"], {}, says="")

    def power_on(self, address: str) -> None:
        """Returns once its Ray has joined."""
        host = Host(f"node-{address.rpartition('.')[2]}", address, _PREPARE)
        self._opened.callback(host.close)
        self.nodes[address] = host
        self._cables += 1
        port = f"port{self._cables}"
        card = "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))
        for command in (
            f"link add {port} type veth peer name {INTERFACE} address {card} netns {host.first_pid}",
            f"link set {port} master {_SWITCH}",
            f"link set {port} up",
        ):
            self.head.network("ip", *command.split())
        for command in (f"address add {address}/{PREFIX_BITS} dev {INTERFACE}", f"link set {INTERFACE} up"):
            host.network("ip", *command.split())
        command_line = [_RAY, "start", f"--address={HEAD}:6379", f"--node-ip-address={address}", "--num-cpus=3"]
        self._run(host, [*command_line, f"--resources={_TIERS}"], {})

    def vanish(self, address: str) -> None:
        """Its cable first, so that nobody is told by a connection's end."""
        host = self.nodes.pop(address)
        host.network("ip", "link", "set", INTERFACE, "down")
        host.close()

    def close(self) -> None:
        self._opened.close()

    def _run(
        self, host: Host, command: list[str], environment: dict[str, str], says: str = "Ray runtime started"
    ) -> None:
        log = self._folder / f"{host.name}.log"
        process = host.start(command, log, self.environment | environment)
        said = process.output.read()  # until it has ended
        deadline = time.monotonic() + _COMMAND_SECONDS
        while process.running():
            assert time.monotonic() < deadline, f"{host.name}: {command} does not end: {said}"
            time.sleep(0.05)
        assert says in said, f"{host.name}: {said}{log.read_text()[-2000:]}"


class HostsServer(FaultServer):
    """On the head, which has no workers; each of the nodes has one of every tier."""

    def __init__(self, folder: Path, patience: Patience, hosts: Hosts) -> None:
        super().__init__(folder, patience, ray=f"{HEAD}:6379", pin_tiers=True)
        self.hosts = hosts
        self._running: HostProcess | None = None

    def _launch(self) -> IO[str]:
        self._running = self.hosts.head.start(self._command, self._log_path, self.hosts.environment)
        return self._running.output

    def _end(self) -> None:
        if self._running is not None:
            self._running.end()


@contextmanager
def hosts_server(folder: Path, patience: Patience) -> Iterator[HostsServer]:
    """In a process of its own, without threads yet: it does not come back to the network that it was in."""
    hosts = Hosts(folder)
    try:
        with HostsServer(folder, patience, hosts) as server:
            yield server
    finally:
        hosts.close()


def _restart_head(server: FaultServer, load: FaultLoad) -> Struck:
    assert isinstance(server, HostsServer)
    since = server.log_length
    at = time.monotonic()
    server.hosts.kill_head()
    server.wait(lambda: "Ray has gone" in server.log(since), "a server that has noticed")
    server.hosts.start_head()
    return Struck(at, (lambda: "Ray is back" in server.log(since),))


def _lose_gcs(server: FaultServer, load: FaultLoad) -> Struck:
    """Ray has then a minute, after which its other processes end by themselves; its operator comes within that."""
    assert isinstance(server, HostsServer)
    since, at = server.log_length, time.monotonic()
    server.hosts.kill_head("gcs_server")
    server.wait(lambda: load.answered_since(at) >= ANSWERS_MEANWHILE, "answers while Ray's head is away")
    server.hosts.stop_head()
    server.hosts.start_head()
    return Struck(at, (lambda: "Ray is back" in server.log(since),))


def _lose_node(address: str, server: FaultServer, load: FaultLoad) -> Struck:
    """It is powered on again as soon as the routers have noticed."""
    assert isinstance(server, HostsServer)
    mine = [worker for worker in server.workers() if worker.address.startswith(f"{address}:")]
    encoded = {each.address: server.encoded()[each.address] for each in mine if each.role is Role.ENCODE}
    at = time.monotonic()
    server.hosts.vanish(address)
    num_lost = sum(len(each.question.pictures) for each in load.in_flight())
    gone = {worker.address for worker in mine}

    def is_lost() -> bool:
        return not any(each.address in gone and each.state == "ready" for each in server.workers())

    server.wait(is_lost, "routers that have noticed")
    server.hosts.power_on(address)
    return Struck(at, (lambda: not gone & {each.address for each in server.workers()},), encoded, num_lost)


_STAGES = frozenset(str(role) for role in Role)
HOST_KINDS = (
    Kind("Ray's head killed and started again", _restart_head),
    Kind("Ray's GCS alone killed, then the head restarted", _lose_gcs),
    Kind("node lost, with a worker of each tier", partial(_lose_node, NODES[1]), retried=_STAGES),
)


def _name_of(pid: int) -> str:
    try:
        return os.path.basename(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0])
    except OSError:
        return ""


def _enter_network(pid: int) -> None:
    """Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as network:
        if libc.setns(network.fileno(), _NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
