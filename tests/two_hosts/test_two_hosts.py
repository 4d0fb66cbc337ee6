"""Rows and KV between two hosts, over NIXL on TCP: the tokens of one host, also when the cable is pulled."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.journey.conversations import Conversation, conversation, conversations, picture
from tests.two_hosts.cluster import Tokens, TwoHostCluster, Worker, tokens_of
from tests.two_hosts.hosts import INTERFACE, Cable, Host, wait_until
from tests.two_hosts.settings import COPY_SECONDS, LEASE_SECONDS, NEWS_SECONDS, REQUEST_SECONDS, tables
from triptych.journey import Role

pytestmark = pytest.mark.skipif(
    find_spec("nixl_cu13") is None, reason="NIXL is not installed, and nothing else joins two hosts"
)

Made = tuple[Host, Host, Cable]

TOKENS = 24
LARGEST = (448, 448)  # 256 rows of 1 KiB each
SLOW_BITS_PER_SECOND = 4_000_000  # a MiB of rows takes two seconds
CUT_SECONDS = 1.0
MID_TRANSFER_BYTES = 150_000
RECOVER_SECONDS = 20.0  # TCP asks again in growing steps: after a long cut it takes a while to find the cable mended


@dataclass(frozen=True)
class Split:
    """Which workers are on the left host; all others are on the right one, with the router."""

    name: str
    left: frozenset[Role]
    right: tuple[frozenset[Role], ...]
    owner: Role
    interface: str  # "": UCX chooses among all there are

    def __str__(self) -> str:
        return self.name


ROWS = Split("rows", frozenset({Role.ENCODE}), (frozenset({Role.PREFILL}), frozenset({Role.DECODE})), Role.ENCODE, "")
KV = Split(
    *("kv", frozenset({Role.ENCODE, Role.PREFILL}), (frozenset({Role.DECODE}),), Role.PREFILL, INTERFACE),
)


def asked() -> list[Conversation]:
    return [*conversations(0), *conversations(1)[1:4]]


def large(seed: int) -> Conversation:
    """Four pictures that nobody has seen: a MiB of rows, and four of KV."""
    return conversation("large", [*(picture(1000 * seed + index, LARGEST) for index in range(4)), "Compare them."])


def answers(cluster: TwoHostCluster, wanted: Sequence[Conversation]) -> list[Tokens]:
    """One after another: nothing in a batch but the request itself."""
    return [tokens_of(cluster.post(messages=each.messages, max_tokens=TOKENS).result()) for each in wanted]


@pytest.fixture(scope="module")
def of_one_host(
    hosts: Made, checkpoint_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Tokens]]:
    """What the same workers answer when all are on one host."""
    host = hosts[1]
    folder = tmp_path_factory.mktemp("one-host")
    places = [(host, frozenset({role})) for role in (Role.ENCODE, Role.PREFILL, Role.DECODE)]
    with TwoHostCluster(places, host, checkpoint_folders["random"], tables(), folder) as cluster:
        told = {
            "asked": answers(cluster, asked()),
            "large": answers(cluster, [large(seed) for seed in range(3)]),
        }
        paths = [path for worker in cluster.get("/v1/cluster").json["workers"] for path in worker["paths"]]
        assert {path["transport"] for path in paths} == {"shm"}
    return told


@pytest.fixture(scope="module", params=[ROWS, KV], ids=str)
def split(request: pytest.FixtureRequest) -> Split:
    chosen: Split = request.param
    return chosen


@pytest.fixture(scope="module")
def cluster(
    split: Split,
    hosts: Made,
    of_one_host: dict[str, list[Tokens]],  # first, so that at most three workers run at once
    checkpoint_folders: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TwoHostCluster]:
    left, right, cable = hosts
    places = [(left, split.left), *((right, roles) for roles in split.right)]
    # One window: a read that would keep it for good after a cut cable would leave none for those behind it.
    settings = tables(nixl_interface=split.interface, nixl_windows=1)
    folder = tmp_path_factory.mktemp(split.name)
    with TwoHostCluster(places, right, checkpoint_folders["random"], settings, folder) as running:
        yield running
        cable.fast()
        cable.mend()


@pytest.fixture(autouse=True)
def cable(hosts: Made) -> Iterator[Cable]:
    """As new before and after each test."""
    hosts[2].fast()
    hosts[2].mend()
    yield hosts[2]
    hosts[2].fast()
    hosts[2].mend()


def test_tokens_are_those_of_one_host(
    cluster: TwoHostCluster, split: Split, hosts: Made, of_one_host: dict[str, list[Tokens]]
) -> None:
    left, _, cable = hosts
    before = cable.sent_bytes(left)
    assert answers(cluster, asked()) == of_one_host["asked"]
    wait_until(lambda: figures(cluster, split)["count"] >= len(asked()), NEWS_SECONDS, "the copies are not in metrics")
    # Nothing took another way than the cable.
    assert cable.sent_bytes(left) - before >= figures(cluster, split)["bytes"] > 0
    cluster.wait_idle(LEASE_SECONDS + 1)


def test_nixl_joins_the_pair_and_status_says_why_nothing_nearer_does(cluster: TwoHostCluster, split: Split) -> None:
    workers = cluster.get("/v1/cluster").json["workers"]
    (path,) = [path for worker in workers for path in worker["paths"] if path["owner_role"] == split.owner
               and path["owner"] == cluster.workers[0].address]  # fmt: skip
    assert path["transport"] == "nixl"
    reasons = dict(reason.split(": ", 1) for reason in path["refused"])
    assert set(reasons) == {"local", "cuda_ipc", "shm"}
    assert reasons["shm"].startswith("the owner is on host ")
    line = f'triptych:transfer_pair_info{{consumer_role="{path["consumer_role"]}",owner_role="{split.owner}"'
    metrics = cluster.get("/metrics").text.splitlines()
    assert [each for each in metrics if each.startswith(line) and 'transport="nixl"' in each]


def test_a_cable_pulled_for_a_moment_costs_time_and_no_token(
    cluster: TwoHostCluster, hosts: Made, of_one_host: dict[str, list[Tokens]]
) -> None:
    cable = hosts[2]
    with mid_transfer(cluster, hosts, seed=0) as (asking, began):
        cable.cut()
        time.sleep(CUT_SECONDS)
        cable.mend()
        cable.fast()
        answer = asking.result()
    assert time.monotonic() - began < REQUEST_SECONDS
    assert tokens_of(answer) == of_one_host["large"][0]
    cluster.wait_idle(LEASE_SECONDS + 1)


def test_a_cable_that_stays_pulled_ends_the_request_in_time_and_leaks_nothing(
    cluster: TwoHostCluster, hosts: Made, of_one_host: dict[str, list[Tokens]]
) -> None:
    _, right, cable = hosts
    near = [worker for worker in cluster.workers if worker.host is right]
    before = [held(worker) for worker in cluster.workers]
    with mid_transfer(cluster, hosts, seed=1) as (asking, began):
        cable.cut()
        wait_until(lambda: lost_copies(cluster, near) > 0, COPY_SECONDS + 5, "no copy was given up")
        answer = asking.result()
    assert answer["code"] in (502, 503, 504), answer
    assert time.monotonic() - began < REQUEST_SECONDS
    wait_until(lambda: all(cluster.status(worker).get("idle") for worker in near), LEASE_SECONDS + 1 + COPY_SECONDS,
               "with the cable pulled, the near ones stay busy")  # fmt: skip
    cable.mend()
    cable.fast()
    wait_until(lambda: cluster.get("/health").code == 200, RECOVER_SECONDS, "the far ones did not come back")
    cluster.wait_idle(LEASE_SECONDS + 1)
    deadline = time.monotonic() + RECOVER_SECONDS
    while (again := cluster.post(messages=large(2).messages, max_tokens=TOKENS).result())["code"] != 200:
        assert time.monotonic() < deadline, again
    assert tokens_of(again) == of_one_host["large"][2]
    assert answers(cluster, asked()) == of_one_host["asked"]
    cluster.wait_idle(LEASE_SECONDS + 1)
    wait_until(lambda: lost_copies(cluster, near) == 0, RECOVER_SECONDS, "a copy given up never ends")
    wait_until(lambda: not grown(cluster, before), RECOVER_SECONDS, "descriptors or threads stayed behind")


def test_nothing_is_left_by_many_requests(cluster: TwoHostCluster, hosts: Made) -> None:
    def storm(seed: int) -> None:
        asking = [
            cluster.post(messages=each.messages, max_tokens=4)
            for each in [*conversations(seed)[1:4], *conversations(seed + 1)[1:4]]
        ]
        for future in asking:
            tokens_of(future.result())

    storm(20)
    cluster.wait_idle(LEASE_SECONDS + 1)
    before = [held(worker) for worker in cluster.workers]
    for seed in (30, 40, 50):
        storm(seed)
    cluster.wait_idle(LEASE_SECONDS + 1)
    wait_until(lambda: not grown(cluster, before), RECOVER_SECONDS, "descriptors or threads stayed behind")
    assert [host.shared_memory() for host in hosts[:2]] == [[], []]
    gauges = [cluster.status(worker)["gauges"] for worker in cluster.workers]
    assert all(each["claims"] == 0 for each in gauges)


@contextmanager
def mid_transfer(cluster: TwoHostCluster, hosts: Made, seed: int) -> "Iterator[tuple[Future[dict[str, Any]], float]]":
    """A request whose copy between the hosts has begun and takes its time; and when it was asked."""
    left, _, cable = hosts
    cable.slow(left, SLOW_BITS_PER_SECOND)
    before, began = cable.sent_bytes(left), time.monotonic()
    asking = cluster.post(messages=large(seed).messages, max_tokens=TOKENS)
    # Statuses and refs are hundreds of bytes: this much is rows or blocks.
    wait_until(lambda: cable.sent_bytes(left) - before > MID_TRANSFER_BYTES, REQUEST_SECONDS, "no transfer began")
    assert not asking.done()
    yield asking, began


def figures(cluster: TwoHostCluster, split: Split) -> dict[str, float]:
    """Copies from the left host so far, as the metrics have them: how many, and their bytes."""
    found = {}
    for line in cluster.get("/metrics").text.splitlines():
        name, _, value = line.rpartition(" ")
        if f'owner_role="{split.owner}",transport="nixl"' in name:
            found[name.partition("{")[0].removeprefix("triptych:transfer_bytes_")] = float(value)
    return {"count": found.get("count", 0.0), "bytes": found.get("sum", 0.0)}


def lost_copies(cluster: TwoHostCluster, workers: Sequence[Worker]) -> float:
    """Given up and still holding memory."""
    gauges: list[dict[str, float]] = [cluster.status(worker)["gauges"] for worker in workers]
    return sum(each["transfer_lost_copies"] for each in gauges)


def held(worker: Worker) -> dict[str, int]:
    """Descriptors and threads of a worker's process."""
    folder = Path(f"/proc/{worker.process.pid}")
    return {"fds": len(list((folder / "fd").iterdir())), "threads": len(list((folder / "task").iterdir()))}


def grown(cluster: TwoHostCluster, before: Sequence[dict[str, int]]) -> list[str]:
    """What each worker holds more than before, beyond what pools of threads and connections may still make."""
    now = [held(worker) for worker in cluster.workers]
    return [
        f"{'+'.join(worker.roles)}: {after} after {earlier}"
        for worker, earlier, after in zip(cluster.workers, before, now, strict=True)
        if after["fds"] > earlier["fds"] + 4 or after["threads"] > earlier["threads"] + 4
    ]
