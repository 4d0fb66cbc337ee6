"""What a worker asks of Ray: a share of a GPU and, where tiers are pinned, a place on a node of its tier. Pure."""

from collections.abc import Mapping, Sequence, Set

from triptych.config import ServeSettings
from triptych.errors import ConfigError
from triptych.journey import Role


def tier_resource(role: Role) -> str:
    """The custom resource by which a node says how many workers of a role it takes: triptych_encode and so on."""
    return f"triptych_{role.value}"


def resources_of(roles: Set[Role], serve: ServeSettings) -> dict[str, float]:
    """Custom resources of one worker; a node must have them all, so one for `epd` counts for each of the three."""
    return {tier_resource(role): 1.0 for role in sorted(roles)} if serve.pin_tiers else {}


STRATEGIES = {"same_node": "STRICT_PACK", "pack": "PACK", "spread": "SPREAD"}  # Ray's, by serve.placement
_MEMORY = {"memory": 1024.0}  # bytes, a token: Ray knows no bundle without anything


def bundles_of(workers: Sequence[Set[Role]], serve: ServeSettings, gpus: float) -> list[Mapping[str, float]]:
    """What a placement group keeps for each of the workers."""
    of_all = _MEMORY | ({"GPU": gpus} if gpus else {})
    return [resources_of(roles, serve) | of_all for roles in workers]


def free_bundles(
    bundles: Sequence[Mapping[str, float]], taken: Sequence[Mapping[str, float]]
) -> list[Mapping[str, float]]:
    """The bundles without those that are taken, of which only the content is known."""
    free = list(bundles)
    for bundle in taken:
        if bundle in free:
            free.remove(bundle)
    return free


def gpus_of(serve: ServeSettings, available: float, num_workers: int) -> float:
    """GPUs of one worker: what settings say, else an equal share of those that Ray has now, however few; 0 without.

    Raises ConfigError where GPUs are asked for, none is there, and settings do not say that they will come.
    """
    if serve.device == "cpu":
        return 0.0
    if serve.gpus_per_worker:
        return serve.gpus_per_worker
    if available == 0:
        if serve.device == "cuda":
            raise ConfigError("serve.device is 'cuda', but Ray sees no GPU; use --device cpu")
        return 0.0
    share = available / num_workers
    return float(int(share)) if share >= 1 else int(share * 1000) / 1000
