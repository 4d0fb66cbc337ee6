"""Workers' actors: made with what placing.py says they ask of Ray, and found again where they outlive their maker."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from triptych.cluster.actors import WorkerActor
from triptych.cluster.groups import group_name, groups_of
from triptych.cluster.names import group_in
from triptych.cluster.placing import STRATEGIES, bundle_of, free_bundles, resources_of
from triptych.cluster.room import available_bytes, require_room_beside
from triptych.config import Settings
from triptych.journey import Role

_PREFIX = "worker/"  # then the id, where it lies, and a number that no other has: an id is used again while Ray still
_GROUPED, _ALONE = "grouped", "alone"  # knows the name of who had it before
_GROUP_NAME = "workers"


class Hiring:
    """Makes workers' actors. Those that there are first share a placement group, where settings ask for one.

    One that ends leaves its bundle to the next that asks for the same, of whatever role. Belongs to one thread.
    """

    def __init__(
        self,
        settings: Settings,
        gpus: Mapping[str, float],
        counts: Mapping[str, int],
        *,
        loopback: bool = False,
        detached: bool = False,
        actor: type = WorkerActor,
    ) -> None:
        """gpus: of each worker, by group; counts: of those that there are first, by group

        loopback: all workers are on this machine and need not be reachable from any other
        detached: they live on when whoever makes them dies
        """
        self._settings = settings
        self._gpus = gpus
        self._loopback = loopback
        self._detached = detached
        # One that dies is not started again by Ray, which knows no pause between two tries.
        self._class = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=4)(actor)
        self._grouped: dict[str, Mapping[str, float]] = {}  # what those of the placement group ask for, by worker
        # A Ray of our own has one node, which is everybody's.
        is_grouped = not loopback and settings.serve.placement != "any"
        first = [self._bundle(group) for group, count in counts.items() for _ in range(count)]
        self._bundles = first if is_grouped else []
        self._group = self._placement_group() if self._bundles else None

    def hire(self, worker_id: str, roles: frozenset[Role], model: str = "") -> Any:
        """Its actor, which begins once Ray has a place for it. model: where it is not that of the settings"""
        group = group_name(roles)
        bundle = self._bundle(group)
        resources = {} if self._loopback else resources_of(roles, self._settings.serve)
        options: dict[str, Any] = {"num_gpus": self._gpus.get(group, 0.0), "resources": resources}
        is_grouped = bundle in free_bundles(self._bundles, list(self._grouped.values()))
        if is_grouped:
            self._grouped[worker_id] = bundle
            # One that asks for nothing would lie in nobody's bundle, so all of them on one node.
            options |= {
                "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group),
                "memory": bundle["memory"],
            }
        elif self._group is not None:
            options["scheduling_strategy"] = self._beside(self._group)
        serve = self._settings.serve
        settings = replace(self._settings, serve=replace(serve, model=model or serve.model))
        if self._detached:
            where = _GROUPED if is_grouped else _ALONE
            options |= {"name": f"{_PREFIX}{worker_id}/{where}/{secrets.token_hex(4)}", "lifetime": "detached"}
        return self._class.options(**options).remote(worker_id, sorted(roles), settings, self._loopback)

    def require_room(self, counts: Mapping[str, int]) -> None:
        """Raises InvalidRequest where as many workers again have no room on this machine, which is all there is.

        Where Ray was joined they wait for it: nodes may come.
        """
        if self._loopback:
            free = ray.available_resources().get("GPU", 0.0)
            require_room_beside(self._settings, self._gpus, counts, free, available_bytes())

    def release(self, worker_id: str) -> None:
        """It has ended, in whatever way."""
        self._grouped.pop(worker_id, None)

    def find(self) -> dict[str, Any]:
        """The detached workers of this namespace that Ray still knows, by id."""
        found = {}
        for name in ray.util.list_named_actors():
            if not name.startswith(_PREFIX):
                continue
            _, worker_id, where, _ = name.split("/")
            try:
                found[worker_id] = ray.get_actor(name)
            except ValueError:
                continue  # it has ended since
            if where == _GROUPED:
                self._grouped[worker_id] = self._bundle(group_in(worker_id))
        return found

    def close(self) -> None:
        """All workers have ended."""
        if self._group is not None:
            remove_placement_group(self._group)

    def _bundle(self, group: str) -> Mapping[str, float]:
        serve = self._settings.serve
        return bundle_of(groups_of(serve.topology)[group], serve, self._gpus.get(group, 0.0))

    def _placement_group(self) -> PlacementGroup:
        """Found again where whoever keeps the workers was started again."""
        if self._detached:
            try:
                return get_placement_group(_GROUP_NAME)
            except ValueError:
                pass  # there is none yet
        strategy = STRATEGIES[self._settings.serve.placement]
        named = {"name": _GROUP_NAME, "lifetime": "detached"} if self._detached else {}
        return placement_group([dict(bundle) for bundle in self._bundles], strategy=strategy, **named)

    def _beside(self, group: PlacementGroup) -> Any:
        """Where a worker goes for whom the group has no bundle left."""
        placement = self._settings.serve.placement
        if placement == "spread":
            return "SPREAD"
        nodes = ray.util.placement_group_table(group)["bundles_to_node_id"].values()
        node = next((node for node in nodes if node), None)
        return NodeAffinitySchedulingStrategy(node, soft=placement == "pack") if node else "DEFAULT"
