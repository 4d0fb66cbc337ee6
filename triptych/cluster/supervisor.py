"""Starts the workers and the router, keeps the router told who is alive, ends what it started."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from triptych.cluster.actors import WorkerActor, WorkerAddress
from triptych.cluster.ahead import CompilingAhead
from triptych.cluster.placing import gpus_of, resources_of
from triptych.cluster.routers import RouterProcesses
from triptych.cluster.runtime import RayRuntime
from triptych.config import TOPOLOGIES, Settings
from triptych.errors import ClusterError, ConfigError
from triptych.journey import Role

log = logging.getLogger(__name__)

Progress = Callable[[str], None]

_START_SECONDS = 600.0
_READY_SECONDS = 60.0
_POLL_SECONDS = 0.25
_SHORT_SECONDS = 0.05
_CALL_SECONDS = 5.0
_STOP_SECONDS = 5.0
_LOST_SECONDS = 15.0  # at the least; a call into a Ray that is gone may take its time, too
_NEWS_SECONDS = 10.0  # between two words about what is still loading


def plan_workers(settings: Settings) -> list[tuple[str, frozenset[Role]]]:
    """Name and roles of every worker. Pure.

    A process that has several roles counts as one worker of each: its number is the largest that any of them asks.
    """
    counts = {
        Role.ENCODE: settings.serve.encoders,
        Role.PREFILL: settings.serve.prefills,
        Role.DECODE: settings.serve.decodes,
    }
    workers = []
    for roles in TOPOLOGIES[settings.serve.topology]:
        name = "".join(role.value[0] for role in Role if role in roles) if len(roles) > 1 else next(iter(roles)).value
        workers += [(f"{name}-{index}", roles) for index in range(max(counts[role] for role in roles))]
    return workers


class Supervisor:
    """A running cluster. `start` returns when all routers answer and know every worker; `stop` is idempotent."""

    def __init__(self, settings: Settings, progress: Progress = log.info, show_logs: bool = False) -> None:
        """show_logs: print what workers and router log, as a person at a terminal wants it"""
        self._settings = settings
        self._show_logs = show_logs
        self._progress = progress
        self._runtime: RayRuntime | None = None
        self._ahead: CompilingAhead | None = None
        self._workers: dict[str, Any] = {}  # worker id -> actor handle
        self._routers: RouterProcesses | None = None
        self._addresses: dict[str, WorkerAddress] = {}
        self._done = threading.Event()
        self.lost = threading.Event()  # Ray itself has gone, and our actors with it
        self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self.port = 0

    def start(self) -> int:
        """The routers' port. Raises ConfigError or ClusterError with the first worker's reason, after cleaning up."""
        try:
            # First, since what they load can be loaded while Ray starts.
            self._routers = RouterProcesses(self._settings, self._progress, self._show_logs)
            self.port = self._routers.port
            self._routers.start()
            planned = plan_workers(self._settings)
            self._ahead = CompilingAhead(self._settings, frozenset().union(*(roles for _, roles in planned)))
            if len(self._ahead):
                self._progress("compiling kernels that no cache has, beside what follows")
            self._progress("looking for Ray")
            self._runtime = RayRuntime(self._settings.serve.ray, self._show_logs, num_actors=len(planned))
            where = "started for this server alone" if self._runtime.started_here else "joined, it was running already"
            self._progress(f"Ray {where}")
            self._create_actors(loopback=self._runtime.started_here)
            self._wait_started()
            self._ahead.stop()
            self._wait_ready()
        except BaseException:
            self.stop()
            raise
        self._watcher.start()
        return self.port

    def addresses(self) -> Sequence[WorkerAddress]:
        return list(self._addresses.values())

    def router_pids(self) -> list[int]:
        """Once all of them are there."""
        return self._routers.pids(_READY_SECONDS) if self._routers is not None else []

    def router_modules(self) -> set[str]:
        """Top-level packages that are loaded in any router."""
        answers = self._routers.ask("modules", _CALL_SECONDS) if self._routers is not None else []
        return {name for answer in answers for name in answer or ()}

    def stop(self) -> None:
        """End the routers, then the workers, then Ray if it was started here."""
        if self._done.is_set():
            return
        self._done.set()
        if self._ahead is not None:
            self._ahead.stop()
        if self._watcher.is_alive():
            self._watcher.join(timeout=_STOP_SECONDS)
        if self._routers is not None:
            self._routers.stop()
        actors = list(self._workers.values())
        stopping = [actor.stop.remote() for actor in actors]
        if stopping:
            ray.wait(stopping, num_returns=len(stopping), timeout=_STOP_SECONDS)
        for actor in actors:
            ray.kill(actor, no_restart=True)
        if self._runtime is not None:
            self._runtime.close()

    def _create_actors(self, loopback: bool) -> None:
        """loopback: all workers are on this machine and need not be reachable from any other."""
        settings = self._settings
        planned = plan_workers(settings)
        gpus = gpus_of(settings.serve, ray.cluster_resources().get("GPU", 0.0), len(planned))
        worker_class = ray.remote(num_cpus=0, num_gpus=gpus, max_restarts=-1, max_concurrency=4)(WorkerActor)
        for worker_id, roles in planned:
            # A Ray of our own has one node, which is every tier's.
            resources = {} if loopback else resources_of(roles, settings.serve)
            placed = worker_class.options(resources=resources)
            self._workers[worker_id] = placed.remote(worker_id, sorted(roles), settings, loopback)

    def _wait_started(self) -> None:
        """Until every actor's constructor has finished, and every router listens; tells which are still loading."""
        calls = {worker_id: actor.address.remote() for worker_id, actor in self._workers.items()}
        began, told = time.monotonic(), 0.0
        while True:
            ready, _ = ray.wait(list(calls.values()), timeout=_POLL_SECONDS) if calls else ([], [])
            for name in [name for name, call in calls.items() if call in ready]:
                self._take_ready(name, calls.pop(name))
            waiting = [*calls, *(self._routers.unready() if self._routers is not None else [])]
            if not waiting:
                break
            elapsed = time.monotonic() - began
            if elapsed - told >= _NEWS_SECONDS:
                told = elapsed
                self._progress(f"loading {', '.join(waiting)} ({elapsed:.0f} s)")
            if elapsed > _START_SECONDS:
                raise ClusterError(f"{', '.join(waiting)} did not start within {_START_SECONDS:.0f} s")
            if not calls:
                time.sleep(_SHORT_SECONDS)
        self._push()

    def _take_ready(self, name: str, call: Any) -> None:
        try:
            value = ray.get(call)
        except RayActorError as error:
            reason = _reason(error).removeprefix("triptych.errors.ConfigError: ")
            raise ConfigError(f"{name} could not start: {reason}") from error
        self._addresses[name] = value
        self._progress(f"{name} ready")

    def _wait_ready(self) -> None:
        """Until the routers, too, have found every worker ready."""
        deadline = time.monotonic() + _READY_SECONDS
        while self._routers is not None and (waiting := self._routers.missing(list(self._workers))):
            if time.monotonic() > deadline:
                raise ClusterError(f"the router cannot reach {', '.join(sorted(waiting))}")
            time.sleep(_SHORT_SECONDS)

    def _watch(self) -> None:
        """Notice restarts (a new incarnation), and keep every router's list current."""
        failures = 0
        while not self._done.wait(_POLL_SECONDS):
            try:
                self._refresh()
                self._push()
                failures = 0
            except RayError as error:
                failures += 1
                if failures == 1:
                    self._progress(f"the cluster's state is unknown for now: {_reason(error)}")
                if failures * _POLL_SECONDS > _LOST_SECONDS:
                    self._progress("Ray has gone, and this server's workers with it")
                    self.lost.set()
                    return

    def _refresh(self) -> None:
        calls = {actor.address.remote(): worker_id for worker_id, actor in self._workers.items()}
        ready, pending = ray.wait(list(calls), num_returns=len(calls), timeout=_CALL_SECONDS)
        alive = {}
        for call in ready:
            try:
                alive[calls[call]] = ray.get(call)
            except (RayActorError, GetTimeoutError):
                if calls[call] in self._addresses:
                    self._progress(f"{calls[call]} is down, Ray is restarting it")
        for call in pending:
            ray.cancel(call)
        for worker_id in self._workers:
            if worker_id in alive and worker_id not in self._addresses:
                self._progress(f"{worker_id} is back")
        self._addresses = alive

    def _push(self) -> None:
        if self._routers is not None:
            self._routers.update(list(self._addresses.values()))


def _reason(error: BaseException) -> str:
    """The innermost message of a Ray error, in one line."""
    text = str(error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
