"""`triptych serve` as an operator has it, with workers to spare: what may be done to it, and what it tells."""

import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import grpc
import httpx
import psutil

from tests.processes import toml_of
from triptych.config import MIB
from triptych.journey import Role
from triptych.pb import worker_pb2
from triptych.pb.worker_pb2_grpc import WorkerStub
from triptych.wire.membership import Membership

WORKERS_OF_EACH_TIER = 2
ROUTERS = 2
LIVENESS_SECONDS = 180.0
_LOOK_SECONDS = 0.1  # whoever looks takes processor time from those that are to come back
_KEY = "operator-of-this-test"
_SECRET = "0123456789abcdef" * 4

# What `triptych serve` runs, with how long a worker's and a router's process may stand still: no settings, as nobody
# has to change them.
_SERVE = """
import sys
from triptych.cluster import member, router_slot
from triptych.cli import main

member.STILL_SECONDS, router_slot.SILENT_SECONDS = map(float, sys.argv[1:3])
sys.exit(main(sys.argv[3:]))
"""

_RETRY = re.compile(r" WARNING request ([0-9a-f]+): (encode|prefill|decode) is tried again")
_SELF_TEST = re.compile(r" the self-test of .*? (passed in|takes in the other roles)")


@dataclass(frozen=True)
class Patience:
    """Seconds for which silence is borne: before a worker's process that is stopped is ended, and a router's; of a
    lease, of one status question, and of a device that is at one step."""

    still: float = 60.0  # all are what a server has by default
    router: float = 15.0
    lease: float = 30.0
    status: float = 5.0
    step: float = 30.0


QUICK = Patience(still=4.0, router=5.0, lease=4.0, status=1.0, step=4.0)


@dataclass(frozen=True)
class Worker:
    worker_id: str
    role: Role
    pid: int
    address: str
    state: str


class FaultServer:
    """A context; it has ended, and all that it started, when the context has."""

    def __init__(self, folder: Path, patience: Patience, **serve: Any) -> None:
        """serve: settings of that table on top of ours"""
        self.headers = {"authorization": f"Bearer {_KEY}"}
        config = folder / "settings.toml"
        config.write_text(toml_of(_tables(patience, serve)))
        self._log_path = folder / "server.log"
        borne = [str(patience.still), str(patience.router)]
        self._command = [sys.executable, "-c", _SERVE, *borne, "serve", "--config", str(config)]
        self._membership = Membership(_SECRET)
        self._channels: dict[str, grpc.Channel] = {}
        # No connection is kept: another router may be the next to answer, and the last one may be gone.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(headers=self.headers, timeout=30, trust_env=False, limits=limits)
        self.url = ""

    def __enter__(self) -> Self:
        line = self._launch().readline()
        assert line.startswith("Triptych is ready on"), self._log_path.read_text()[-4000:]
        self.url = line.split()[4].removesuffix("/v1")
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels.values():
            channel.close()
        self._http.close()
        self._end()

    def _launch(self) -> IO[str]:
        """Starts it; what it prints."""
        with self._log_path.open("w") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        return self._process.stdout

    def _end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(LIVENESS_SECONDS)
        finally:
            self._process.kill()

    @property
    def log_length(self) -> int:
        return self._log_path.stat().st_size

    def log(self, since: int = 0) -> str:
        with self._log_path.open("rb") as log:
            log.seek(since)
            return log.read().decode(errors="replace")

    def router_pids(self) -> list[int]:
        children = psutil.Process(self._process.pid).children()
        return sorted(each.pid for each in children if "triptych.router.router_process" in _words(each))

    def workers(self) -> list[Worker]:
        """As some router knows them."""
        return [
            Worker(each["worker_id"], Role(each["roles"][0]), each["pid"], each["address"], each["state"])
            for each in self._get("/v1/cluster").json()["workers"]
            if each["roles"]
        ]

    def of(self, role: Role) -> list[Worker]:
        return [worker for worker in self.workers() if worker.role is role]

    def all_ready(self) -> bool:
        """Whether whoever keeps the workers has as many as are wanted, and the routers give work to each."""
        states = [worker.state for worker in self.workers()]
        settled: bool = self._get("/admin/scale").json()["settled"]
        return settled and states == ["ready"] * (WORKERS_OF_EACH_TIER * len(Role))

    def clear_embeddings(self) -> None:
        response = self._http.post(f"{self.url}/admin/embeddings/clear")
        assert response.is_success, response.text

    def retries(self) -> Counter[str]:
        """That requests have spent so far, by stage."""
        found = re.findall(r'^triptych:retries_total\{stage="(\w+)"\} (\S+)', self._get("/metrics").text, re.MULTILINE)
        return Counter({stage: int(float(count)) for stage, count in found})

    def retries_told(self, since: int) -> Counter[tuple[str, str]]:
        """Of each request at each stage, as the routers have logged them."""
        return Counter((request, stage) for request, stage in _RETRY.findall(self.log(since)))

    def items_of_self_tests(self, since: int) -> int:
        """That encoders were given by the routers themselves."""
        return sum(1 if how == "passed in" else 2 for how in _SELF_TEST.findall(self.log(since)))

    def gauges(self, worker: Worker) -> dict[str, float]:
        return {gauge.name: gauge.value for gauge in self._status(worker, check=False).gauges}

    def encoded(self) -> dict[str, int]:
        """Items that each encoder has encoded since it is there, by its address."""
        return {each.address: int(self.gauges(each)["encoder_items_encoded_total"]) for each in self.of(Role.ENCODE)}

    def left_over(self) -> list[str]:
        """What some worker still holds, or which of its invariants does not hold."""
        found = []
        for worker in self.workers():
            status = self._status(worker, check=True)
            gauges = {gauge.name: gauge.value for gauge in status.gauges}
            held = {"claims": gauges["claims"], "blocks": gauges.get("kv_blocks", 0) - gauges.get("kv_free_blocks", 0)}
            if status.violation or not status.idle or any(held.values()):
                found.append(f"{worker.worker_id}: {status.violation or held}")
        return found

    def wait(self, holds: Callable[[], bool], what: str, every: float = _LOOK_SECONDS) -> float:
        """The moment from which it holds. Raises AssertionError where it never does. every: seconds between looks"""
        deadline = time.monotonic() + LIVENESS_SECONDS
        while True:
            with _unless_gone():
                if holds():
                    return time.monotonic()
            assert time.monotonic() < deadline, f"waited {LIVENESS_SECONDS:g} s for {what}: {self.log()[-4000:]}"
            time.sleep(every)

    def _get(self, path: str) -> httpx.Response:
        response = self._http.get(self.url + path)
        response.raise_for_status()
        return response

    def answers(self, worker: Worker, seconds: float) -> bool:
        """Whether it does within that time."""
        try:
            self._status(worker, check=False, seconds=seconds)
        except grpc.RpcError:
            return False
        return True

    def _status(self, worker: Worker, *, check: bool, seconds: float = 10.0) -> worker_pb2.StatusReply:
        """Raises grpc.RpcError where it does not answer."""
        if worker.address not in self._channels:
            self._channels[worker.address] = self._membership.channel(worker.address)
        stub = WorkerStub(self._channels[worker.address])  # type: ignore[no-untyped-call]
        reply: worker_pb2.StatusReply = stub.Status(worker_pb2.StatusRequest(check_invariants=check), timeout=seconds)
        return reply


@contextmanager
def _unless_gone() -> Iterator[None]:
    """Whoever was asked may be the one that was struck."""
    try:
        yield
    except (httpx.HTTPError, grpc.RpcError):
        pass


def _tables(patience: Patience, more: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    each = dict.fromkeys(("encoders", "prefills", "decodes"), WORKERS_OF_EACH_TIER)
    serve: dict[str, Any] = {"topology": "e+p+d", "device": "cpu", "cpu_threads": 1, "ray": "local"}
    serve |= {"served_name": "m", "step_seconds": patience.step}
    return {
        "serve": {**serve, **each, "routers": ROUTERS, "cluster_secret": _SECRET, **more},
        "router": {"port": 0, "api_key": _KEY, "status_timeout_seconds": patience.status},
        "encoder": {"arena_bytes": 32 * MIB},
        # No prefix cache: whoever goes on with a request needs its images' rows again.
        "language": {"kv_bytes": 64 * MIB, "landing_bytes": 32 * MIB, "prefix_cache": False},
        "transfer": {"lease_seconds": patience.lease},
    }


def _words(process: psutil.Process) -> list[str]:
    try:
        words: list[str] = process.cmdline()
    except psutil.Error:
        return []
    return words
