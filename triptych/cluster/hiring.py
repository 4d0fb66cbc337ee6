"""Workers' actors: made with what placing.py says they ask of Ray, and found again where they outlive their maker."""

import secrets
from collections.abc import Callable
from typing import Any

import ray

from triptych.cluster.actors import WorkerActor
from triptych.cluster.placing import resources_of
from triptych.config import Settings
from triptych.journey import Role

# Makes the actor of a worker with this id and these roles.
Hire = Callable[[str, frozenset[Role]], Any]

_PREFIX = "worker/"  # then the id and a number that no other has: an id is used again before Ray has forgotten a name


def hiring(settings: Settings, gpus: float, *, loopback: bool, detached: bool = False) -> Hire:
    """gpus: of each worker

    loopback: all workers are on this machine and need not be reachable from any other
    detached: they live on when whoever makes them dies
    """
    # One that dies is not started again by Ray, which knows no pause between two tries.
    worker_class = ray.remote(num_cpus=0, num_gpus=gpus, max_restarts=0, max_concurrency=4)(WorkerActor)

    def hire(worker_id: str, roles: frozenset[Role]) -> Any:
        # A Ray of our own has one node, which is every tier's.
        options: dict[str, Any] = {"resources": {} if loopback else resources_of(roles, settings.serve)}
        if detached:
            options |= {"name": f"{_PREFIX}{worker_id}/{secrets.token_hex(4)}", "lifetime": "detached"}
        return worker_class.options(**options).remote(worker_id, sorted(roles), settings, loopback)

    return hire


def hired() -> dict[str, Any]:
    """The detached workers of this namespace that Ray still knows, by id."""
    found = {}
    for name in ray.util.list_named_actors():
        if name.startswith(_PREFIX):
            try:
                found[name.split("/")[1]] = ray.get_actor(name)
            except ValueError:
                pass  # it has ended since
    return found
