"""Requests that queue at a prefill worker for five leases, and hosts whose wall clocks are wrong."""

import ast
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.faults.cluster import FaultyCluster, Outcome, Tables
from tests.faults.nursery import Nursery
from tests.faults.trial import SLACK_SECONDS
from tests.journey.conversations import picture, png
from tests.journey.messages import image, user
from triptych.journey import Role
from triptych.transfer.faults import Action, Fault

LEASE_SECONDS = 0.8
QUEUED_SECONDS = 5 * LEASE_SECONDS
UNIT_BYTES = 16 * 256 * 4  # 16 rows of the random model
ARENA_BYTES = 24 * UNIT_BYTES
OTHERS = (448, 224, 224)  # sides of images that fill it: 16, 4 and 4 units
API_KEY = "operator"
HOUR = 3600.0
ROOT = Path(__file__).parents[2]
# What tells a client, or a chat template that asks, what time it is.
WALL_CLOCKS = {
    *("router/api/chat.py", "router/api/completions/form.py", "router/api/responses/form.py"),
    *("router/api/models_list.py", "router/pipeline/chat_template.py", "router/edge/gate.py"),
    *("router/observe/recent.py", "router/page/feed.py"),
    "services/worker_service.py",  # since when it runs, for a metric
}


@pytest.fixture(scope="module")
def cluster(
    nursery: Nursery, checkpoint_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultyCluster]:
    """One worker of each role, each an hour ahead of the one before; landing memory for a single large item."""
    tables: Tables = {
        "router": {"status_timeout_seconds": 10.0, "api_key": API_KEY},
        "encoder": {"arena_bytes": ARENA_BYTES, "output_bytes": ARENA_BYTES},
        "language": {"landing_bytes": 1},
        "transfer": {"lease_seconds": LEASE_SECONDS},
    }
    offsets = {"encode-0": -HOUR, "decode-0": HOUR}
    folder = tmp_path_factory.mktemp("queueing")
    model = str(checkpoint_folders["random"])
    cluster = FaultyCluster(nursery, folder, model, dict.fromkeys(Role, 1), tables, offsets)
    yield cluster
    cluster.stop()


def asked(seed: int) -> list[dict[str, object]]:
    return [user(image(png(picture(seed, (224, 224)))), image(png(picture(seed + 1, (112, 84)))), "What differs?")]


class Watch:
    """What encoders and the router have counted since the constructor."""

    def __init__(self, cluster: FaultyCluster) -> None:
        self._cluster = cluster
        self._before = self._read()

    def counted(self) -> dict[str, float]:
        return {name: value - self._before[name] for name, value in self._read().items()}

    def _read(self) -> dict[str, float]:
        lines = self._cluster.http.get("/metrics").text.splitlines()
        retries = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("triptych:retries_total{")]
        names = ("encoder_items_encoded_total", "expired_claims_total")
        return {name: self._cluster.gauge(Role.ENCODE, name) for name in names} | {"retries": sum(retries)}


def while_queued(cluster: FaultyCluster, seed: int, during: Callable[[], None]) -> Outcome:
    """The answer to a request during whose stay at the prefill worker something is done."""
    answers: list[Outcome] = []
    thread = threading.Thread(target=lambda: answers.append(cluster.ask(asked(seed), 8)))
    thread.start()
    during()
    thread.join(60)
    assert answers, "the request hung"
    return answers[0]


def overwrite(cluster: FaultyCluster, seed: int) -> None:
    """All of the encoder's memory that nobody claims gets other items' rows."""
    response = cluster.http.post("/admin/embeddings/clear")
    assert response.status_code == httpx.codes.OK, response.text
    for index, side in enumerate(OTHERS):
        messages = [user(image(png(picture(seed + index, (side, side)))))]
        response = cluster.http.post("/admin/embeddings/warm", json={"model": "m", "messages": messages})
        assert response.status_code == httpx.codes.OK, response.text


def wait_struck(cluster: FaultyCluster) -> int:
    """The process that the fault has struck."""
    deadline = time.monotonic() + 30
    while not cluster.faults.struck():
        assert time.monotonic() < deadline, "nobody came to the step"
        time.sleep(0.01)
    return cluster.faults.struck()[-1][1]


def test_rows_that_wait_five_leases_for_their_pull_are_not_encoded_again(cluster: FaultyCluster) -> None:
    """The second of two requests waits as long for the first one's landing memory; neither is tried again."""
    watch = Watch(cluster)
    cluster.faults.set(Fault("rows.begin", Action.DELAY, seconds=QUEUED_SECONDS))
    second: list[Outcome] = []

    def ask_behind() -> None:
        wait_struck(cluster)
        second.append(cluster.ask(asked(32), 8))

    behind = threading.Thread(target=ask_behind)
    behind.start()

    def overwrite_meanwhile() -> None:
        wait_struck(cluster)
        for lease in range(5):
            time.sleep(LEASE_SECONDS * 0.9)
            overwrite(cluster, 1000 + 3 * lease)

    began = time.monotonic()
    first = while_queued(cluster, 30, overwrite_meanwhile)
    behind.join(60)
    assert time.monotonic() - began > QUEUED_SECONDS
    assert [first.status, second[0].status] == [200, 200]
    assert watch.counted() == {
        "encoder_items_encoded_total": 4 + 5 * len(OTHERS),
        "expired_claims_total": 0,
        "retries": 0,
    }
    cluster.faults.clear()
    cluster.seconds_until_idle(LEASE_SECONDS + SLACK_SECONDS)
    assert cluster.ask(asked(30), 8) == first


def test_without_renewals_the_same_wait_costs_another_encode(cluster: FaultyCluster) -> None:
    """That the test before can fail: it is the renewals that keep the rows."""
    watch = Watch(cluster)
    cluster.faults.set(Fault("renew.serve", Action.DROP, at=Role.ENCODE, every=True))
    cluster.faults.set(Fault("rows.begin", Action.DELAY, seconds=QUEUED_SECONDS))

    def overwrite_late() -> None:
        wait_struck(cluster)
        time.sleep(QUEUED_SECONDS * 0.8)
        overwrite(cluster, 1100)

    outcome = while_queued(cluster, 50, overwrite_late)
    cluster.faults.clear()
    counted = watch.counted()
    assert counted["expired_claims_total"] >= 1
    assert counted["encoder_items_encoded_total"] > 2 + len(OTHERS)
    assert counted["retries"] >= 1
    assert outcome.status == httpx.codes.OK
    cluster.seconds_until_idle(LEASE_SECONDS + SLACK_SECONDS)


def test_rows_outlast_a_prefill_worker_that_stands_still_for_five_leases(cluster: FaultyCluster) -> None:
    """The router renews: the rows' next reader cannot."""
    watch = Watch(cluster)
    cluster.faults.set(Fault("rows.begin", Action.STOP, at=Role.PREFILL))

    def stand_still() -> None:
        pid = wait_struck(cluster)
        time.sleep(QUEUED_SECONDS)
        cluster.workers[cluster.of_pid(pid)].signal(signal.SIGCONT)

    outcome = while_queued(cluster, 70, stand_still)
    cluster.faults.clear()
    assert outcome.status == httpx.codes.OK
    assert watch.counted() == {"encoder_items_encoded_total": 2, "expired_claims_total": 0, "retries": 0}
    cluster.seconds_until_idle(LEASE_SECONDS + SLACK_SECONDS)
    assert cluster.ask(asked(70), 8) == outcome


def test_an_unreleased_claim_ends_in_time_on_a_host_whose_clock_is_wrong(cluster: FaultyCluster) -> None:
    """All of this file's workers disagree about the hour; leases are durations and end when they should."""
    cluster.faults.set(Fault("release.ask", Action.DROP, at=Role.PREFILL))
    watch = Watch(cluster)
    assert cluster.ask(asked(90), 8).status == httpx.codes.OK
    seconds = cluster.seconds_until_idle(LEASE_SECONDS + SLACK_SECONDS)
    cluster.faults.clear()
    assert seconds > 0.2 * LEASE_SECONDS
    assert watch.counted()["expired_claims_total"] >= 1


def test_the_workers_of_this_file_do_have_wrong_clocks(cluster: FaultyCluster) -> None:
    """Their logs say so: an hour late, right, an hour early."""
    hours = {worker_id: worker.log().splitlines()[-1][:13] for worker_id, worker in cluster.workers.items()}
    assert hours["encode-0"] < hours["prefill-0"] < hours["decode-0"], hours


def test_no_decision_looks_at_the_wall_clock() -> None:
    """Nothing between workers calls time.time or datetime.now; only what clients are told does."""
    found = set()
    for folder in ("triptych/transfer", "triptych/engine", "services", "router"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if any(_reads_wall_clock(node) for node in ast.walk(ast.parse(file.read_text()))):
                found.add(str(file.relative_to(ROOT)))
    assert found == WALL_CLOCKS


def _reads_wall_clock(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    return (node.value.id, node.attr) in {
        *(("time", name) for name in ("time", "time_ns", "localtime", "gmtime")),
        *((name, call) for name in ("datetime", "date") for call in ("now", "utcnow", "today")),
    }
