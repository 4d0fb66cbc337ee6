"""The Ray actor: a worker process with its roles.

Its modules are loaded by name inside the actor. The process that starts the cluster needs the class but not what it
runs, so it stays free of torch and starts fast.
"""

import importlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from triptych.cluster.finishing import finish_on_sigterm
from triptych.config import Settings
from triptych.garbage import settle
from triptych.journey import Endpoint, Role


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """What a router must know to reach a worker."""

    worker_id: str
    roles: frozenset[Role]
    endpoint: Endpoint
    pid: int
    is_draining: bool = False
    memory: str = ""  # what it is for, in words


class WorkerActor:
    """One worker, for as long as its process lives: another one takes its place, under the same id or another."""

    def __init__(self, worker_id: str, roles: Sequence[str], settings: Settings, loopback: bool) -> None:
        _log_to_stderr(settings)
        host_module: Any = importlib.import_module("triptych.services.host")
        roles_module: Any = importlib.import_module("triptych.cluster.roles")
        placement = host_module.Placement(
            worker_id=worker_id,
            roles=frozenset(Role(role) for role in roles),
            bind_host="127.0.0.1" if loopback else ray.util.get_node_ip_address(),
            device=settings.serve.device,
            device_share=_device_share(),
        )
        self._host = host_module.WorkerHost(placement, roles_module.BUILDERS, settings)
        endpoint = self._host.start()
        self._address = WorkerAddress(worker_id, placement.roles, endpoint, os.getpid(), memory=self._host.memory)
        # In place of Ray's own handler, by which the process would end at once.
        drain_seconds = settings.serve.drain_seconds or settings.router.request_timeout_seconds
        finish_on_sigterm(self.drain, self.stop, drain_seconds)
        settle()

    def address(self) -> WorkerAddress:
        return self._address

    def drain(self) -> bool:
        """Takes nothing new from now on. Whether all that was here has ended."""
        self._address = replace(self._address, is_draining=True)
        return bool(self._host.drain())

    def stop(self) -> None:
        self._host.stop()


def _device_share() -> float:
    """Of its GPU, as Ray has placed this actor; 1 without one."""
    assigned = ray.get_runtime_context().get_assigned_resources().get("GPU", 0.0)
    return min(1.0, float(assigned)) or 1.0


def _log_to_stderr(settings: Settings) -> None:
    logging.basicConfig(
        level=settings.router.log_level.upper(), format="%(asctime)s %(name)s %(levelname)s %(message)s", force=True
    )
