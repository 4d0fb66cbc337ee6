"""The operations guide, followed: `ray up` from a desk, three machines that answer, one lost and back, `ray down`.

deploy/ray/local.yaml is run as it stands: the machines have its addresses and its user.
"""

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.three_hosts.guide import Operator, commands_under
from tests.three_hosts.machines import Machine, Site, machines
from tests.two_hosts.hosts import REPOSITORY, HostsUnavailable, wait_until

pytestmark = [
    pytest.mark.skipif(
        find_spec("nixl_cu13") is None, reason="NIXL is not installed, and nothing else joins two hosts"
    ),
    pytest.mark.cluster,
    pytest.mark.timeout(420),
]

PROVIDER = yaml.safe_load((REPOSITORY / "deploy" / "ray" / "local.yaml").read_text())["provider"]
DESK = "192.168.1.9"
ADDRESSES = dict(zip(("head", "encode", "language"), (PROVIDER["head_ip"], *PROVIDER["worker_ips"]), strict=True))
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "constraints.txt", "triptych", "services", "router", "deploy")
STATUS = "triptych status --api-key KEY"

UP_SECONDS = 180.0
NOTICED_SECONDS = 60.0
BACK_SECONDS = 180.0
SCALE_SECONDS = 120.0
DOWN_SECONDS = 60.0
GONE_SECONDS = 120.0  # raylets wait a minute for a head that may come back


@dataclass(frozen=True)
class Cluster:
    site: Site
    operator: Operator
    head: Machine
    encode: Machine
    language: Machine
    before: "Outside"

    def told(self) -> str:
        """What an operator would look at."""
        return f"--- the server's log ends with\n{self.server_log[-8000:]}"

    @property
    def server_log(self) -> str:
        log = self.head.home / "triptych" / "serve.log"
        return log.read_text() if log.exists() else ""

    def wait(self, loop: str, seconds: float, worker: str = "") -> None:
        """loop: while or until, for as long as all are ready, this worker among them. Raises TimeoutError."""
        named = f" && {STATUS} | grep -q ^{worker}" if worker else ""
        try:
            self.operator.run(f"{loop} {STATUS}{named}; do sleep 1; done", seconds)
        except TimeoutError as error:
            error.add_note(self.told())
            raise


@dataclass(frozen=True)
class Outside:
    """What the machine that runs the tests has, and hosts could leave behind."""

    interfaces: frozenset[str]
    mounts: frozenset[str]

    @classmethod
    def now(cls) -> "Outside":
        mounts = frozenset(line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
        return cls(frozenset(os.listdir("/sys/class/net")), mounts)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    before = Outside.now()
    folder = tmp_path_factory.mktemp("site")
    try:
        with machines(folder, DESK, ADDRESSES) as site:
            _copy_sources(site.desk)
            steps = commands_under("## Install") + commands_under("### Three machines, step by step")
            operator = Operator(site.desk, "source", steps)
            running = Cluster(site, operator, *site.machines, before)
            _bring_up(running)
            yield running
    except HostsUnavailable as error:
        pytest.skip(str(error))


def _copy_sources(desk: Machine) -> None:
    """As a clone would be: the user's own."""
    target = desk.home / "source"
    target.mkdir()
    for name in (*SOURCES, "tests/data"):
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)
    desk.own_home()


def _bring_up(running: Cluster) -> None:
    operator = running.operator
    operator.follow("python3 -m venv")
    operator.follow("export PATH=")
    operator.follow("pip wheel")
    operator.follow("pip install")
    operator.follow("triptych doctor")
    operator.follow("ray get-auth-token")
    operator.follow("triptych keys")
    operator.follow("ray up", UP_SECONDS)
    try:
        operator.follow("until ray exec", UP_SECONDS)
    except (AssertionError, TimeoutError) as error:
        error.add_note(running.told())
        raise


def ask(cluster: Cluster, picture: str, question: str) -> str:
    ran = cluster.operator.run(f"triptych ask --api-key KEY --image tests/data/{picture} '{question}'")
    assert ran.status == 0, ran.said + cluster.told()
    return ran.said.strip()


def questions() -> list[Mapping[str, str]]:
    """About one picture each, with what the embedded model answers."""
    entries = json.loads((REPOSITORY / "tests" / "data" / "questions.json").read_text())
    found = [each for each in entries if each["demo"] and len(each["images"]) == 1]
    return [{"picture": each["images"][0], "question": each["question"], "answer": each["answer"]} for each in found]


def test_log_and_nodes_can_be_looked_at(cluster: Cluster) -> None:
    assert "Triptych is ready" in cluster.operator.follow("ray exec")
    said = cluster.operator.follow("ray exec")
    assert "triptych_encode" in said, said
    assert "no pending nodes" in said, said


def test_a_picture_is_answered_for_through_the_router_on_the_head(cluster: Cluster) -> None:
    cluster.operator.follow("ssh")
    assert cluster.operator.follow("triptych ask").strip().lower() == "bread"
    asked = questions()[:4]
    assert [ask(cluster, each["picture"], each["question"]) for each in asked] == [each["answer"] for each in asked]


def test_rows_go_between_the_machines_by_nixl_and_kv_stays_on_one(cluster: Cluster) -> None:
    said = cluster.operator.run(STATUS).said
    assert "prefill-0 reads encode-0 by nixl" in said
    assert "decode-0 reads prefill-0 by shm" in said


def test_nobody_gets_into_this_ray_without_its_token(cluster: Cluster) -> None:
    status = f". ./.bashrc; %s ray status --address={cluster.head.address}:6379"
    mine = cluster.language.run(status % "", 60)
    assert mine.status == 0, mine.said
    assert cluster.language.run(status % "RAY_AUTH_TOKEN=" + "1" * 64, 60).status != 0


def test_the_doctor_finds_the_running_server_and_compares_clocks(cluster: Cluster) -> None:
    checks = "--only ports --only clock --only ray_token --only nixl"
    ran = cluster.head.run(f". ./.bashrc; triptych doctor {checks} --peer http://127.0.0.1:8000", 60)
    assert ran.status == 0, ran.said
    assert "is a running Triptych's" in ran.said


def test_a_machine_that_is_lost_gets_its_worker_again_once_it_is_back(cluster: Cluster) -> None:
    cluster.encode.power_off()
    cluster.wait("while", NOTICED_SECONDS)
    cluster.site.power_on(cluster.encode)
    cluster.wait("until", BACK_SECONDS, "encode-0")  # once it is known to be lost, the others are all there is
    assert ask(cluster, "sign-bread.png", "Read the text.").lower() == "bread"


def test_a_server_that_is_killed_is_started_again_and_takes_its_workers_over(cluster: Cluster) -> None:
    lines = cluster.head.processes()
    (server,) = [pid for pid, line in lines.items() if "bin/triptych serve" in line and "python" in line.split()[0]]
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: "taken over" in cluster.server_log, NOTICED_SECONDS, "no other server has come", every=0.5)
    cluster.wait("until", NOTICED_SECONDS)
    assert ask(cluster, "sign-bread.png", "Read the text.").lower() == "bread"


def test_a_second_encoder_comes_when_it_is_asked_for(cluster: Cluster) -> None:
    cluster.operator.follow("triptych scale", SCALE_SECONDS)
    said = cluster.operator.follow("triptych status")
    assert said.count("encode-") >= 2, said
    asked = questions()[4:8]
    assert [ask(cluster, each["picture"], each["question"]) for each in asked] == [each["answer"] for each in asked]


def test_a_router_on_another_machine_has_the_same_workers(cluster: Cluster) -> None:
    steps = commands_under("### A router on another machine")
    operator = Operator(cluster.language, ".", steps, cluster.operator.key)
    operator.follow("export PATH=")
    operator.follow("TRIPTYCH_ROUTER_API_KEYS_FILE=")
    said = operator.follow("until triptych status", UP_SECONDS)
    assert all(name in said for name in ("encode-0", "encode-1", "prefill-0", "decode-0")), said
    assert operator.follow("triptych ask").strip() == "12"
    operator.follow("pkill")
    assert operator.left == []
    log = cluster.language.home / "triptych" / "serve.log"
    wait_until(lambda: not _serves(cluster.language), NOTICED_SECONDS, f"it goes on: {log.read_text()[-4000:]}")
    assert ask(cluster, "sign-bread.png", "Read the text.").lower() == "bread"


def _serves(machine: Machine) -> bool:
    return any("bin/triptych serve" in line for line in machine.processes().values())


def test_ray_up_again_brings_a_new_release_to_all_machines(cluster: Cluster) -> None:
    project = cluster.site.desk.home / "source" / "pyproject.toml"
    project.write_text(re.sub(r'^version = ".*"$', 'version = "99.0"', project.read_text(), flags=re.MULTILINE))
    cluster.operator.follow("pip wheel")
    cluster.operator.follow("ray up", UP_SECONDS)
    cluster.operator.follow("until ray exec", UP_SECONDS)
    for machine in cluster.site.machines:
        assert "Version: 99.0\n" in machine.run("triptych/venv/bin/pip show triptych", 30).said
    assert ask(cluster, "sign-bread.png", "Read the text.").lower() == "bread"


def test_ray_down_leaves_nothing_on_the_machines(cluster: Cluster) -> None:
    starts = cluster.server_log.count("looking for Ray")
    cluster.operator.follow("ray down", DOWN_SECONDS)
    assert cluster.operator.left == [], "the guide has commands that nobody has given"

    def left() -> dict[str, list[str]]:
        lines = {machine.name: list(machine.processes().values()) for machine in cluster.site.machines}
        found = {name: [x for x in each if x[:5] != "sshd:"] for name, each in lines.items()}
        return {name: each for name, each in found.items() if each}

    try:
        wait_until(lambda: not left(), GONE_SECONDS, "processes live on", every=0.5)
    except TimeoutError as error:
        error.add_note(f"{left()}\n{cluster.told()}")
        raise
    assert [machine.host.shared_memory() for machine in cluster.site.machines] == [[], [], []]
    assert cluster.server_log.count("looking for Ray") == starts, "the server was started again, without a Ray"


def test_nothing_is_left_of_the_machines_themselves(cluster: Cluster) -> None:
    """Last: they are gone after it."""
    pids = {pid for machine in (cluster.site.desk, *cluster.site.machines) for pid in machine.all_pids()}
    cluster.site.close()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10, "some of their processes live on")
    assert Outside.now() == cluster.before
