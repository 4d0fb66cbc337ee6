"""What a worker asks of Ray: a share of a GPU and, where tiers are pinned, a place on a node of its tier. Pure."""

from collections.abc import Mapping, Sequence, Set

from triptych.cluster.groups import group_meant
from triptych.config import ServeSettings
from triptych.errors import ConfigError, InvalidRequest
from triptych.journey import Role


def tier_resource(role: Role) -> str:
    """The custom resource by which a node says how many workers of a role it takes: triptych_encode and so on."""
    return f"triptych_{role.value}"


def resources_of(roles: Set[Role], serve: ServeSettings) -> dict[str, float]:
    """Custom resources of one worker; a node must have them all, so one for `epd` counts for each of the three."""
    return {tier_resource(role): 1.0 for role in sorted(roles)} if serve.pin_tiers else {}


STRATEGIES = {"same_node": "STRICT_PACK", "pack": "PACK", "spread": "SPREAD"}  # Ray's, by serve.placement
_LEAST_SHARE = 0.001  # of a GPU: Ray counts no finer than ten thousandths
_MEMORY = {"memory": 1024.0}  # bytes, a token: Ray knows no bundle without anything


def bundle_of(roles: Set[Role], serve: ServeSettings, gpus: float) -> Mapping[str, float]:
    """What a placement group keeps for one worker."""
    return resources_of(roles, serve) | _MEMORY | ({"GPU": gpus} if gpus else {})


def free_bundles(
    bundles: Sequence[Mapping[str, float]], taken: Sequence[Mapping[str, float]]
) -> list[Mapping[str, float]]:
    """The bundles without those that are taken, of which only the content is known."""
    free = list(bundles)
    for bundle in taken:
        if bundle in free:
            free.remove(bundle)
    return free


def gpus_of(serve: ServeSettings, available: float, counts: Mapping[str, int]) -> dict[str, float]:
    """GPUs of one worker of each group: what settings say, else an equal share of those that Ray has now, however few.

    available: GPUs; counts: workers by group
    Raises ConfigError where GPUs are asked for, none is there, and settings do not say that they will come; and for
    shares of what is no role.
    """
    if serve.device == "cpu":
        return dict.fromkeys(counts, 0.0)
    named = named_shares(serve)
    others = sum(count for group, count in counts.items() if group not in named)
    taken = sum(named[group] * count for group, count in counts.items() if group in named)
    of_others = _equal_share(serve, available, taken, others) if others else 0.0
    return {group: named.get(group, of_others) for group in counts}


def require_room(gpus: Mapping[str, float], counts: Mapping[str, int], available: float) -> None:
    """Raises ConfigError where the workers ask for more GPUs than there will ever be: Ray would let them wait."""
    asked = sum(gpus[group] * count for group, count in counts.items())
    if asked > available + _LEAST_SHARE:
        each = ", ".join(f"{count} x {gpus[group]:g} for {group}" for group, count in counts.items())
        raise ConfigError(
            f"the workers ask for {asked:g} GPUs ({each}), and there are {available:g}; "
            "lower serve.gpu_shares or serve.gpus_per_worker"
        )


def named_shares(serve: ServeSettings) -> dict[str, float]:
    """Of `serve.gpu_shares`, by group. Raises ConfigError for shares of what is no role."""
    found: dict[str, float] = {}
    for entry in serve.gpu_shares:
        name, _, share = entry.partition("=")
        try:
            group = group_meant(serve.topology, name)
        except InvalidRequest as error:
            raise ConfigError(f"serve.gpu_shares: {error}") from None
        if found.setdefault(group, float(share)) != float(share):
            raise ConfigError(f"serve.gpu_shares has two shares for {group}, {found[group]:g} and {float(share):g}")
    return found


def _equal_share(serve: ServeSettings, available: float, taken: float, num_workers: int) -> float:
    if serve.gpus_per_worker:
        return serve.gpus_per_worker
    if available == 0:
        if serve.device == "cuda":
            raise ConfigError("serve.device is 'cuda', but Ray sees no GPU; use --device cpu")
        return 0.0
    share = (available - taken) / num_workers
    if share < _LEAST_SHARE:
        raise ConfigError(
            f"serve.gpu_shares take {taken:g} of {available:g} GPUs, "
            f"which leaves nothing for {num_workers} other workers"
        )
    return float(int(share)) if share >= 1 else int(share * 1000) / 1000
