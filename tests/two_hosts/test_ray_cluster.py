"""A Ray over two hosts, started by the very commands of deploy/ray/local.yaml: workers go where their tier is.

`ray up` itself wants ssh and rsync; what it would run on the nodes runs here, one command after the other.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.two_hosts.hosts import REPOSITORY, Cable, Host, wait_until

pytestmark = [
    pytest.mark.skipif(
        find_spec("nixl_cu13") is None, reason="NIXL is not installed, and nothing else joins two hosts"
    ),
    pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not here"),
    pytest.mark.cluster,
    pytest.mark.timeout(600),
]

FILE = yaml.safe_load((REPOSITORY / "deploy" / "ray" / "local.yaml").read_text())
START_SECONDS = 240.0
NOTICED_SECONDS = 60.0
NEWS_SECONDS = 20.0
END_SECONDS = 240.0  # two minutes pass before Ray's own library gives a head up
STOP = "ray stop --force --grace-period 1"  # it waits for zombies, which nobody reaps on these hosts
PICTURE = "tests/data/sign-bread.png"


@dataclass(frozen=True)
class Node:
    """One host with a home and a folder of Ray's of its own."""

    host: Host
    home: Path
    log: Path

    def run(self, command: str, **environment: str) -> tuple[int, str]:
        """Status and output of a command that ends, as a login shell of the node's user would run it."""
        home = {"HOME": str(self.home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        variables = {**home, "RAY_TMPDIR": str(self.ray), "RAY_USAGE_STATS_ENABLED": "0"}
        variables |= {"RAY_AUTH_MODE": "token", **environment}
        process = self.host.start(["bash", "-c", f"{command}\necho status $?"], self.log, variables)
        said, _, status = process.output.read().rpartition("status ")
        process.end()
        return int(status), said

    @property
    def ray(self) -> Path:
        return self.home.parent / "ray"  # one path on all nodes; behind it, memory of each

    def server_log(self) -> str:
        file = self.home / "triptych" / "serve.log"
        return file.read_text() if file.exists() else ""


@dataclass(frozen=True)
class RayCluster:
    """Its head and router on the left, with the language tiers; the encoder's node on the right."""

    head: Node
    worker: Node

    def start(self) -> None:
        for command in FILE["head_start_ray_commands"]:
            # Two hosts for three tiers: the head takes two. No autoscaler, which would want ssh.
            tiers = """--resources='{"triptych_prefill": 1, "triptych_decode": 1}'"""
            self._run(self.head, command.replace("--autoscaling-config=~/ray_bootstrap_config.yaml", tiers))
        for command in FILE["worker_start_ray_commands"]:
            self._run(self.worker, command, RAY_HEAD_IP=self.head.host.address)

    def _run(self, node: Node, command: str, **environment: str) -> None:
        addresses = {FILE["provider"]["head_ip"]: self.head.host.address}
        addresses[FILE["provider"]["worker_ips"][0]] = self.worker.host.address
        for written, real in addresses.items():
            command = command.replace(written, real)
        status, said = node.run(command, **environment)
        assert status == 0, f"{command}: {said}{node.log.read_text()}"

    def is_ready(self) -> bool:
        return self.head.run("triptych status")[0] == 0


def prepare(host: Host, folder: Path, log: Path) -> Node:
    """As `file_mounts` and `setup_commands` would leave it."""
    node = Node(host, folder / host.name, log)
    (node.home / ".ray").mkdir(parents=True)
    (node.home / "triptych").mkdir()
    (node.home / ".ray" / "auth_token").write_text("0" * 64)
    shutil.copy(REPOSITORY / "deploy" / "cluster.toml", node.home / "triptych" / "cluster.toml")
    node.ray.mkdir(exist_ok=True)
    assert node.run(f"mount -t tmpfs tmpfs {node.ray}")[0] == 0
    return node


@pytest.fixture(scope="module")
def cluster(hosts: tuple[Host, Host, Cable], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    left, right, _ = hosts
    logs = tmp_path_factory.mktemp("logs")
    # A short name: below it come sockets, whose paths may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
        head, worker = (prepare(host, Path(folder), logs / f"{host.name}.log") for host in (left, right))
        started = RayCluster(head, worker)
        started.start()
        try:
            wait_until(started.is_ready, START_SECONDS, "no server")
        except TimeoutError as error:
            error.add_note(head.server_log() + head.log.read_text() + worker.log.read_text())
            raise
        yield started  # what still runs then ends with its host


def test_a_picture_is_answered_for_by_workers_on_two_hosts(cluster: RayCluster) -> None:
    status, said = cluster.head.run(f"triptych ask --image {PICTURE} 'Read the text.'")
    assert (status, said.strip().lower()) == (0, "bread"), cluster.head.server_log()


def test_rows_go_between_the_hosts_by_nixl_and_kv_stays_on_one(cluster: RayCluster) -> None:
    wanted = ("prefill-0 reads encode-0 by nixl", "decode-0 reads prefill-0 by shm")

    def told() -> bool:
        said = cluster.head.run("triptych status")[1]
        return all(path in said for path in wanted)

    wait_until(told, NEWS_SECONDS, "the router has not been told of these paths")  # it asks workers twice a second


def test_nobody_gets_into_this_ray_without_its_token(cluster: RayCluster) -> None:
    address = f"--address={cluster.head.host.address}:6379"
    status, said = cluster.worker.run(f"ray status {address} 2>&1")
    assert status == 0, said
    assert cluster.worker.run(f"ray status {address}", RAY_AUTH_TOKEN="1" * 64)[0] != 0


def test_the_doctor_finds_the_running_server_and_compares_clocks(cluster: RayCluster) -> None:
    checks = "--only ports --only clock --only ray_token --only nixl"
    status, said = cluster.head.run(f"triptych doctor {checks} --peer http://127.0.0.1:8000")
    assert status == 0, said
    assert "is a running Triptych's" in said


def test_a_node_that_comes_back_gets_its_worker_again(cluster: RayCluster) -> None:
    assert cluster.worker.run(STOP)[0] == 0
    wait_until(lambda: not cluster.is_ready(), NOTICED_SECONDS, "the encoder's node is gone, and nobody has noticed")
    command = FILE["worker_start_ray_commands"][-1].replace(
        FILE["provider"]["worker_ips"][0], cluster.worker.host.address
    )
    assert cluster.worker.run(command, RAY_HEAD_IP=cluster.head.host.address)[0] == 0
    wait_until(cluster.is_ready, START_SECONDS, "the encoder has not come back")
    status, said = cluster.head.run(f"triptych ask --image {PICTURE} 'Read the text.'")
    assert (status, said.strip().lower()) == (0, "bread")


def test_without_its_ray_the_server_ends_and_leaves_nothing(cluster: RayCluster) -> None:
    """Last: nothing is left to ask."""
    for node in (cluster.worker, cluster.head):
        assert node.run(STOP)[0] == 0
    for node in (cluster.worker, cluster.head):
        wait_until(partial(_is_empty, node.host), END_SECONDS, f"processes live on at {node.host.name}")
    assert cluster.head.server_log().count("looking for Ray") == 1, "it was started again, without a Ray"


def _is_empty(host: Host) -> bool:
    return not any(_lives(pid) for pid in host.processes())


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
