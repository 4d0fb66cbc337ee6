"""The Ray actor: a worker process with its roles.

Its modules are loaded by name inside the actor. The process that starts the cluster needs the class but not what it
runs, so it stays free of torch and starts fast.
"""

import importlib
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from triptych.cluster.finishing import finish_on_sigterm
from triptych.cluster.progress import Progress, work_done
from triptych.config import Settings
from triptych.errors import TriptychError
from triptych.garbage import settle
from triptych.journey import Endpoint, Role
from triptych.logs import log_to_stderr

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """What a router must know to reach a worker."""

    worker_id: str
    roles: frozenset[Role]
    endpoint: Endpoint
    pid: int
    is_draining: bool = False
    memory: str = ""  # what it is for, in words
    trouble: str = ""  # of which it is about to end


class WorkerActor:
    """One worker, for as long as its process lives: another one takes its place, under the same id or another.

    It loads on a thread of its own, so that whoever keeps it hears how far it is.
    """

    def __init__(self, worker_id: str, roles: Sequence[str], settings: Settings, loopback: bool) -> None:
        log_to_stderr(settings.router.log_level, settings.observe.log_format, worker_id)
        bind_host = "127.0.0.1" if loopback else ray.util.get_node_ip_address()
        self._host: Any = None
        self._ready: WorkerAddress | None = None
        self._failure: Exception | None = None
        self._is_draining = False
        # In place of Ray's own handler, by which the process would end at once.
        drain_seconds = settings.serve.drain_seconds or settings.router.request_timeout_seconds
        finish_on_sigterm(self.drain, self.stop, drain_seconds)
        what = (worker_id, frozenset(Role(role) for role in roles), bind_host, _device_share(), settings)
        threading.Thread(target=self._load, args=what, name="load", daemon=True).start()

    def address(self) -> WorkerAddress | Progress:
        """Where it is, or how far. Raises why it cannot be."""
        if self._failure is not None:
            raise self._failure
        if self._ready is None:
            return Progress(self._host.stage if self._host is not None else "loads its libraries", work_done())
        return replace(self._ready, is_draining=self._is_draining, trouble=self._host.trouble)

    def drain(self) -> bool:
        """Takes nothing new from now on. Whether all that was here has ended."""
        self._is_draining = True
        return self._ready is None or bool(self._host.drain())

    def stop(self) -> None:
        if self._ready is not None:
            self._host.stop()

    def _load(
        self, worker_id: str, roles: frozenset[Role], bind_host: str, device_share: float, settings: Settings
    ) -> None:
        try:
            host_module: Any = importlib.import_module("triptych.services.host")
            roles_module: Any = importlib.import_module("triptych.cluster.roles")
            placement = host_module.Placement(
                worker_id=worker_id,
                roles=roles,
                bind_host=bind_host,
                device=settings.serve.device,
                device_share=device_share,
            )
            self._host = host_module.WorkerHost(placement, roles_module.BUILDERS, settings)
            endpoint = self._host.start()
            settle()
            self._ready = WorkerAddress(worker_id, roles, endpoint, os.getpid(), memory=self._host.memory)
        except Exception as error:
            if not isinstance(error, TriptychError):  # which says all that there is to know
                log.exception("the worker could not start")
            self._failure = error


def _device_share() -> float:
    """Of its GPU, as Ray has placed this actor; 1 without one."""
    assigned = ray.get_runtime_context().get_assigned_resources().get("GPU", 0.0)
    return min(1.0, float(assigned)) or 1.0
