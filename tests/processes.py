"""A cluster of plain processes, without Ray: workers started by their own command, a router in this process.

For machines where starting Ray costs more than the test, and for faults that want a process's own signals.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc
import httpx

from triptych import wire
from triptych.config import TOPOLOGIES, Settings
from triptych.journey import Endpoint, Role
from triptych.models.card import load_card
from triptych.pb import worker_pb2
from triptych.pb.worker_pb2_grpc import WorkerStub
from triptych.router.fleet.link import KnownWorker
from triptych.router.server import RouterServer

START_SECONDS = 300.0
WORKER_MODULE = "triptych.cluster.worker"
_NOTHING_MORE: Mapping[str, str] = {}

Tables = Mapping[str, Mapping[str, object]]
_NOTHING_OWN: Mapping[Role, Tables] = {}


class WorkerProcess:
    """One worker process; `kill` ends it without warning."""

    def __init__(
        self,
        worker_id: str,
        roles: frozenset[Role],
        settings: Settings,
        config: Path,
        log: Path,
        module: str = WORKER_MODULE,
        environment: Mapping[str, str] = _NOTHING_MORE,
    ) -> None:
        """module: what is run, with the command line of triptych.cluster.worker; environment: on top of ours."""
        self.worker_id = worker_id
        self.roles = roles
        self._log = log.open("w")
        command = [sys.executable, "-m", module, "--roles", ",".join(sorted(roles))]
        command += ["--model", settings.serve.model, "--device", settings.serve.device, "--dtype", settings.serve.dtype]
        command += ["--worker-id", worker_id, "--config", str(config)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=os.environ | environment
        )
        self._log_path = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> KnownWorker:
        stdout = self._process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line.startswith("ready "):
            raise RuntimeError(f"{self.worker_id} did not start: {self._log_path.read_text()[-2000:]}")
        _, address, incarnation = line.split()
        return KnownWorker(self.worker_id, Endpoint(address, int(incarnation)), self.roles)

    def log(self) -> str:
        self._log.flush()
        return self._log_path.read_text()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait(timeout=10)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()


class ProcessCluster:
    """Workers of a topology as processes, a router in this one; `url` answers once the constructor returns."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        tables: Tables,
        module: str = WORKER_MODULE,
        environment: Mapping[str, str] = _NOTHING_MORE,
        own: Mapping[Role, Tables] = _NOTHING_OWN,
    ) -> None:
        """tables: the settings that differ from the defaults, as the workers' TOML file has them.

        own: settings of the workers of a role that differ from those
        module, environment: the workers', as WorkerProcess has them
        """
        self._processes = []
        for index, roles in enumerate(TOPOLOGIES[settings.serve.topology]):
            worker_id = f"worker-{index}"
            config, log = (folder / f"{worker_id}.{kind}" for kind in ("toml", "log"))
            config.write_text(toml_of(_joined(tables, *(own[role] for role in sorted(roles) if role in own))))
            self._processes.append(WorkerProcess(worker_id, roles, settings, config, log, module, environment))
        precision = settings.language.precision
        card = load_card(settings.serve.model, settings.serve.dtype, precision=precision)
        self.router = RouterServer(settings, card)
        try:
            self.workers = [process.wait_ready() for process in self._processes]
            self.url = f"http://127.0.0.1:{self.router.start()}"
            self.router.update(self.workers)
            self._wait_healthy()
        except BaseException:
            self.stop()
            raise

    def _wait_healthy(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while httpx.get(f"{self.url}/health", trust_env=False).status_code != httpx.codes.OK:
            if time.monotonic() > deadline:
                raise RuntimeError("the router saw no complete cluster in time")
            time.sleep(0.05)

    def logs(self) -> str:
        """What the workers have logged so far."""
        return "".join(process.log() for process in self._processes)

    def busy(self) -> list[str]:
        """What is not back to its idle state, or breaks an invariant."""
        found = []
        for worker in self.workers:
            with grpc.insecure_channel(worker.endpoint.address, options=wire.CHANNEL_OPTIONS) as channel:
                stub = WorkerStub(channel)  # type: ignore[no-untyped-call]
                status = stub.Status(worker_pb2.StatusRequest(check_invariants=True), timeout=10)
            if status.violation or not status.idle:
                found.append(f"{worker.worker_id}: {status.violation or 'not idle'}")
        return found

    def stop(self) -> None:
        self.router.stop()
        for process in self._processes:
            process.stop()


def _joined(*parts: Tables) -> Tables:
    """Of settings that are in several, those of the last."""
    names = dict.fromkeys(name for tables in parts for name in tables)
    return {name: {key: value for tables in parts for key, value in tables.get(name, {}).items()} for name in names}


def toml_of(tables: Tables) -> str:
    """A settings file of plain values."""
    lines: list[str] = []
    for table, entries in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{name} = {_toml_value(value)}" for name, value in entries.items()]
    return "\n".join(lines) + "\n"


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, Sequence):
        return "[" + ", ".join(_toml_value(entry) for entry in value) + "]"
    return repr(value)
