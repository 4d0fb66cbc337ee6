"""Three tiers and a router, each a process of its own, under load for a while: what each of them holds meanwhile."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx

from tests.processes import WorkerProcess, toml_of
from tests.soak.fill import CHUNK_TOKENS, MOST_PATCHES, fill
from tests.soak.load import Load
from tests.soak.samples import Samples
from tests.soak.settling import settle
from triptych import wire
from triptych.config import MIB, load_settings
from triptych.journey import Role
from triptych.pb import worker_pb2
from triptych.pb.worker_pb2_grpc import WorkerStub

CLIENTS = 6
LEASE_SECONDS = 5.0
IDLE_SECONDS = LEASE_SECONDS + 10.0
START_SECONDS = 120.0
MOST_SAMPLES = 300

TABLES: Mapping[str, Mapping[str, object]] = {
    "serve": {"device": "cpu", "dtype": "float32", "served_name": "m", "cpu_threads": 1},
    "router": {"port": 0, "log_level": "warning"},
    # Small, so that rows and blocks are evicted all the time. No batch is larger than the largest picture: `fill` then
    # meets every number of patches that there can be.
    "encoder": {"arena_bytes": 4 * MIB, "host_cache_bytes": 2 * MIB, "max_encoder_tokens_per_batch": MOST_PATCHES},
    "language": {"kv_bytes": 24 * MIB, "landing_bytes": 4 * MIB, "prefill_chunk_tokens": CHUNK_TOKENS},
    "transfer": {"lease_seconds": LEASE_SECONDS, "sweep_interval_seconds": 0.2, "checksums": True},
}


@dataclass
class Record:
    """Samples since all had come to rest, and what the load and the counters said."""

    samples: Samples = field(default_factory=Samples)
    settled_after: float = 0.0  # seconds of load
    unsettled: list[str] = field(default_factory=list)  # what never came to rest
    outcomes: dict[str, int] = field(default_factory=dict)
    unbalanced: list[str] = field(default_factory=list)

    def complaints(self) -> list[str]:
        """What grew, in words, and what does not add up."""
        return [*self.unsettled, *self.samples.grew(), *self.unbalanced]

    def summary(self) -> dict[str, Any]:
        """For a file: first and last level, growth and noise of everything."""
        trends = self.samples.trends()
        return {
            "settled_after": self.settled_after,
            "seconds": self.samples.at[-1],
            "samples": len(self.samples.at),
            "outcomes": self.outcomes,
            "quantities": {f"{name}.{quantity}": asdict(found) for (name, quantity), found in trends.items()},
        }


@dataclass(frozen=True)
class Serving:
    """A running cluster: where it answers, its processes and its workers' addresses by name."""

    url: str
    pids: Mapping[str, int]
    addresses: Mapping[str, str]


def soak(model: str, folder: Path, seconds: float) -> Record:
    """Serves `model` under load for so long since it has settled, then lets it come to rest.

    Writes summary.json into the folder.
    """
    record = Record()
    with serving(model, folder) as cluster:
        fill(cluster.url)
        load = Load(cluster.url, CLIENTS)
        try:
            record.settled_after, record.unsettled = settle(cluster.pids)
            began = time.monotonic()
            interval = max(1.0, seconds / MOST_SAMPLES)
            while (now := time.monotonic() - began) < seconds:
                record.samples.add(now, cluster.pids)
                time.sleep(interval)
        finally:
            load.stop()
        record.outcomes = dict(load.outcomes)
        try:
            record.unbalanced = unbalanced(cluster, load.outcomes)
        except (AssertionError, grpc.RpcError, httpx.HTTPError) as error:  # what was measured is wanted all the same
            record.unbalanced = [f"{type(error).__name__}: {error}"]
    (folder / "summary.json").write_text(json.dumps(record.summary(), indent=1))
    return record


@contextmanager
def serving(model: str, folder: Path) -> Iterator[Serving]:
    """One worker of each role and a router, in processes started by their own commands."""
    flags = {f"{table}.{name}": value for table, entries in TABLES.items() for name, value in entries.items()}
    settings = load_settings(environment={}, flags={**flags, "serve.model": model})
    config = folder / "settings.toml"
    config.write_text(toml_of(TABLES))
    with ExitStack() as stack:
        workers = [WorkerProcess(role, frozenset({role}), settings, config, folder / f"{role}.log") for role in Role]
        for worker in workers:
            stack.callback(worker.stop)
        addresses = {worker.worker_id: worker.wait_ready().endpoint.address for worker in workers}
        command = [sys.executable, "-m", "triptych.router", "--model", model, "--config", str(config), "--port", "0"]
        command += [argument for address in addresses.values() for argument in ("--worker", address)]
        log = stack.enter_context((folder / "router.log").open("w"))
        router = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        stack.callback(_end, router)
        assert router.stdout is not None
        url = router.stdout.readline().split()[-1]
        _wait_healthy(url)
        yield Serving(url, {worker.worker_id: worker.pid for worker in workers} | {"router": router.pid}, addresses)


def unbalanced(cluster: Serving, outcomes: Mapping[str, int]) -> list[str]:
    """What does not add up once the load is over, in words."""
    found = [f"{count} requests ended as {outcome!r}" for outcome, count in outcomes.items() if not _good(outcome)]
    for name, address in cluster.addresses.items():
        gauges = _at_rest(address)
        found += [f"{name}: {complaint}" for complaint in _complaints(gauges)]
    router = _metrics(cluster.url)
    for metric in ("triptych:num_requests_running", "triptych:media_bytes"):
        if router[metric] != 0:
            found.append(f"router: {metric} is {router[metric]:g}, expected 0")
    answered = sum(value for name, value in router.items() if name.startswith("triptych:requests_total"))
    if answered < sum(outcomes.values()):
        found.append(f"router: {answered:g} requests were counted, {sum(outcomes.values())} were sent")
    return found


def _good(outcome: str) -> bool:
    kind, _, status = outcome.partition(": ")
    return status == "200" or (kind == "bad image" and status in ("400", "413"))


def _at_rest(address: str) -> dict[str, float]:
    """The worker's gauges once it is idle. Raises AssertionError when it does not come to that, or breaks a rule."""
    deadline = time.monotonic() + IDLE_SECONDS
    with grpc.insecure_channel(address, options=wire.CHANNEL_OPTIONS) as channel:
        stub = WorkerStub(channel)  # type: ignore[no-untyped-call]
        while True:
            question = worker_pb2.StatusRequest(check_invariants=True)
            status = stub.Status(question, timeout=IDLE_SECONDS, wait_for_ready=True)
            gauges = {gauge.name: gauge.value for gauge in status.gauges}
            assert not status.violation, status.violation
            if status.idle:
                return gauges
            assert time.monotonic() < deadline, f"{status.worker_id} is not idle: {gauges}"
            time.sleep(0.1)


def _complaints(gauges: Mapping[str, float]) -> list[str]:
    granted, released, expired = (
        gauges[f"{name}_total"] for name in ("claims_granted", "claims_released", "expired_claims")
    )
    found = []
    if granted != released + expired or gauges["claims"]:
        found.append(
            f"{granted:g} claims were granted, {released:g} released, {expired:g} expired, {gauges['claims']:g} live"
        )
    if gauges.get("kv_free_blocks") != gauges.get("kv_blocks"):
        found.append(f"{gauges['kv_free_blocks']:g} of {gauges['kv_blocks']:g} KV blocks are free")
    if gauges.get("landing_bytes", 0):
        found.append(f"{gauges['landing_bytes']:g} bytes of landing memory are held")
    return found


def _metrics(url: str) -> dict[str, float]:
    """The router's samples by name and labels, once no request runs."""
    deadline = time.monotonic() + IDLE_SECONDS
    while True:
        lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
        samples = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}
        if not samples["triptych:num_requests_running"] or time.monotonic() > deadline:
            return samples
        time.sleep(0.1)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=5)


def _wait_healthy(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not httpx.get(f"{url}/health", trust_env=False).is_success:
        assert time.monotonic() < deadline, "the router saw no complete cluster"
        time.sleep(0.1)
