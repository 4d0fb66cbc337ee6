"""A cluster whose workers are made to fail: several of each role as processes of their own, a router in this one."""

import signal
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx

from tests.faults.nursery import Nursery, Nursling, Order
from tests.processes import toml_of
from triptych import wire
from triptych.config import MIB, Settings, load_settings
from triptych.journey import Endpoint, Role
from triptych.models.card import load_card
from triptych.pb import worker_pb2
from triptych.pb.worker_pb2_grpc import WorkerStub
from triptych.router.fleet.link import KnownWorker
from triptych.router.server import RouterServer
from triptych.transfer.faults import SWITCH_VARIABLE, FaultFolder

ANSWER_SECONDS = 60.0
HEALTHY_SECONDS = 60.0
LEASE_SECONDS = 2.0

Tables = Mapping[str, Mapping[str, object]]

TABLES: Tables = {
    "serve": {"cpu_threads": 1, "device": "cpu", "dtype": "float32", "served_name": "m"},
    # A stopped worker is lost after three times this long without an answer; a live one answers in milliseconds.
    "router": {"log_level": "warning", "status_interval_seconds": 0.1, "status_timeout_seconds": 0.6},
    "encoder": {"arena_bytes": 16 * MIB},
    # Small chunks: KV goes in several refs. No prefix cache: every request takes every step.
    "language": {"kv_bytes": 32 * MIB, "landing_bytes": 16 * MIB, "prefill_chunk_tokens": 48, "prefix_cache": False},
    "transfer": {"lease_seconds": LEASE_SECONDS, "sweep_interval_seconds": 0.1, "checksums": True},
}


@dataclass(frozen=True)
class Outcome:
    """What a client got: status, and the ids of a good answer."""

    status: int
    token_ids: tuple[int, ...]
    text: str = ""


def merged(tables: Tables, more: Tables) -> Tables:
    return {table: {**tables.get(table, {}), **more.get(table, {})} for table in {**tables, **more}}


class FaultyCluster:
    """`counts` workers of each role, all up once the constructor returns. Their names are encode-0, encode-1, ..."""

    def __init__(
        self,
        nursery: Nursery,
        folder: Path,
        model: str,
        counts: Mapping[Role, int],
        tables: Tables | None = None,
        clock_offsets: Mapping[str, float] | None = None,
    ) -> None:
        """tables: settings on top of TABLES; clock_offsets: seconds by which a worker's wall clock is wrong, by name"""
        folder.mkdir(exist_ok=True)
        self.faults = FaultFolder(folder / "faults")
        self.model = model
        self._tables = merged(merged(TABLES, tables or {}), {"transfer": {"faults": str(self.faults.path)}})
        self._clock_offsets = clock_offsets or {}
        self._nursery = nursery
        self._folder = folder
        self._config = folder / "settings.toml"
        self._config.write_text(toml_of(self._tables))
        self.workers: dict[str, Nursling] = {}
        self.known: dict[str, KnownWorker] = {}
        self._channels: dict[Endpoint, grpc.Channel] = {}
        self._router: RouterServer | None = None
        self.http = httpx.Client()
        try:
            self._begin({f"{role}-{index}": role for role, count in counts.items() for index in range(count)})
            self.new_router()
        except BaseException:
            self.stop()
            raise

    @property
    def lease_seconds(self) -> float:
        return self.settings.transfer.lease_seconds

    @property
    def settings(self) -> Settings:
        flags = {f"{table}.{name}": value for table, entries in self._tables.items() for name, value in entries.items()}
        # Whoever comes first to a step gets its fault: that must be a request of the test's own.
        flags |= {"router.self_test": False}
        return load_settings(environment={}, flags={**flags, "serve.model": self.model, "router.port": 0})

    def new_router(self) -> None:
        """Another router in the old one's place: what the old one knew and counted is gone."""
        if self._router is not None:
            self.http.close()
            self._router.stop()
        settings = self.settings
        card = load_card(settings.serve.model, settings.serve.dtype)
        self._router = RouterServer(settings, card, list(self.known.values()))
        self.url = f"http://127.0.0.1:{self._router.start()}"
        self.http = self._client()
        self.wait_ready()

    def restart(self, worker_ids: Collection[str]) -> None:
        """Ends what is left of these workers and starts others in their place."""
        for worker_id in worker_ids:
            self.workers[worker_id].kill()
            if (channel := self._channels.pop(self.known[worker_id].endpoint, None)) is not None:
                channel.close()
        self._begin({worker_id: next(iter(self.known[worker_id].roles)) for worker_id in worker_ids})
        assert self._router is not None
        self._router.update(list(self.known.values()))
        self.wait_ready()

    def of_role(self, role: Role) -> list[str]:
        return [worker_id for worker_id, known in self.known.items() if role in known.roles]

    def of_pid(self, pid: int) -> str:
        return next(worker_id for worker_id, worker in self.workers.items() if worker.pid == pid)

    def wait_ready(self) -> None:
        """Until the router finds every worker ready."""
        deadline = time.monotonic() + HEALTHY_SECONDS
        while states := {row["worker_id"]: row["state"] for row in self.http.get("/v1/cluster").json()["workers"]}:
            if len(states) == len(self.workers) and set(states.values()) == {"ready"}:
                return
            assert time.monotonic() < deadline, f"workers are not ready: {states}"
            time.sleep(0.02)

    def ask(self, messages: Sequence[Mapping[str, Any]], max_tokens: int = 16) -> Outcome:
        """Greedy, without an end before `max_tokens`."""
        body: dict[str, Any] = {"model": "m", "messages": list(messages), "max_tokens": max_tokens, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True}
        with self._client() as client:
            response = client.post("/v1/chat/completions", json=body)
        if response.status_code != httpx.codes.OK:
            return Outcome(response.status_code, (), response.text)
        return Outcome(response.status_code, tuple(response.json()["choices"][0]["token_ids"]))

    def _client(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.settings.router.api_key or 'none'}"}
        return httpx.Client(base_url=self.url, timeout=ANSWER_SECONDS, trust_env=False, headers=headers)

    def together(self, asked: Sequence[Sequence[Mapping[str, Any]]], max_tokens: int = 16) -> list[Outcome]:
        with ThreadPoolExecutor(len(asked)) as threads:
            return list(threads.map(lambda messages: self.ask(messages, max_tokens), asked))

    def status(self, worker_id: str) -> worker_pb2.StatusReply:
        """Raises grpc.RpcError when it does not answer."""
        endpoint = self.known[worker_id].endpoint
        if endpoint not in self._channels:
            self._channels[endpoint] = grpc.insecure_channel(endpoint.address, options=wire.CHANNEL_OPTIONS)
        stub = WorkerStub(self._channels[endpoint])  # type: ignore[no-untyped-call]
        reply: worker_pb2.StatusReply = stub.Status(worker_pb2.StatusRequest(check_invariants=True), timeout=5)
        return reply

    def gauge(self, role: Role, name: str) -> float:
        """Summed over the workers of the role."""
        statuses = [self.status(worker_id) for worker_id in self.of_role(role)]
        return sum(gauge.value for status in statuses for gauge in status.gauges if gauge.name == name)

    def busy(self, without: Collection[str] = ()) -> list[str]:
        """What is not back to its idle state, in words; broken invariants too."""
        found = []
        for worker_id in self.workers.keys() - set(without):
            try:
                status = self.status(worker_id)
            except grpc.RpcError as error:
                found.append(f"{worker_id} does not answer: {error}")
                continue
            if status.violation or not status.idle:
                gauges = {gauge.name: gauge.value for gauge in status.gauges if gauge.value}
                found.append(f"{worker_id}: {status.violation or 'not idle'}, {gauges}")
        return found

    def seconds_until_idle(self, limit: float, without: Collection[str] = ()) -> float:
        """How long until all workers but some are idle, every invariant intact; AssertionError past the limit."""
        began = time.monotonic()
        while busy := self.busy(without):
            assert time.monotonic() - began < limit, f"still busy after {limit} s: {busy}"
            time.sleep(0.02)
        return time.monotonic() - began

    def logs(self) -> str:
        return "\n".join(f"--- {worker_id}\n{worker.log()[-3000:]}" for worker_id, worker in self.workers.items())

    def stop(self) -> None:
        self.faults.clear()
        for channel in self._channels.values():
            channel.close()
        if self._router is not None:
            self.http.close()
            self._router.stop()
        for worker in self.workers.values():
            if worker.alive():
                worker.signal(signal.SIGCONT)
                worker.kill()

    def _begin(self, roles: Mapping[str, Role]) -> None:
        """Starts workers side by side and learns where they listen."""
        for worker_id, role in roles.items():
            arguments = [
                "--roles",
                role,
                "--model",
                self.model,
                "--worker-id",
                worker_id,
                "--config",
                str(self._config),
            ]
            order = Order(
                arguments,
                output=str(self._folder / f"{worker_id}.ready"),
                errors=str(self._folder / f"{worker_id}.log"),
                environment={SWITCH_VARIABLE: "1"},
                clock_offset=self._clock_offsets.get(worker_id, 0.0),
            )
            self.workers[worker_id] = Nursling(self._nursery, worker_id, order)
        for worker_id, role in roles.items():
            self.known[worker_id] = KnownWorker(worker_id, self.workers[worker_id].endpoint(), frozenset({role}))
