"""Role groups: the roles that share a process in a topology, which are scaled as that process. Pure."""

from collections.abc import Mapping

from triptych.config import TOPOLOGIES, ServeSettings
from triptych.errors import InvalidRequest
from triptych.journey import Role


def group_name(roles: frozenset[Role]) -> str:
    """encode, prefill or decode; the first letters of several, as ep."""
    return "".join(role.value[0] for role in Role if role in roles) if len(roles) > 1 else next(iter(roles)).value


def groups_of(topology: str) -> Mapping[str, frozenset[Role]]:
    return {group_name(roles): roles for roles in TOPOLOGIES[topology]}


def first_counts(serve: ServeSettings) -> dict[str, int]:
    """Workers of each group that the settings ask for: the largest number that any of a group's roles has."""
    by_role = {Role.ENCODE: serve.encoders, Role.PREFILL: serve.prefills, Role.DECODE: serve.decodes}
    return {name: max(by_role[role] for role in roles) for name, roles in groups_of(serve.topology).items()}


def group_meant(topology: str, name: str, param: str | None = None) -> str:
    """The group of this name, or the one that has the role of this name. Raises InvalidRequest.

    param: the request's field that has the name; None where the name is itself a field
    """
    groups = groups_of(topology)
    if name in groups:
        return name
    for group, roles in groups.items():
        if name in {role.value for role in roles}:
            return group
    names = [*groups, *(role.value for role in Role if role.value not in groups)]
    told = f"{name[:64]!r} is no role of topology {topology}; there are {', '.join(names)}"
    raise InvalidRequest(told, param=param or name)


def counts_wished(topology: str, counts: Mapping[str, int], wish: Mapping[str, int], most: int) -> dict[str, int]:
    """The counts with what is wished for, by groups' names or roles'; most: workers of all groups together.

    Raises InvalidRequest for what cannot be: no worker of a role, too many, unequal numbers of what shares a process.
    """
    if not wish:
        raise InvalidRequest(f"nothing is wished for; name a role and a number, as {next(iter(counts))}=2")
    wished: dict[str, tuple[str, int]] = {}
    for name, count in wish.items():
        group = group_meant(topology, name)
        if count < 1:
            raise InvalidRequest(
                f"{name}={count} would leave requests without a worker of a role; expected 1 or more", param=name
            )
        other, its_count = wished.setdefault(group, (name, count))
        if its_count != count:
            raise InvalidRequest(
                f"{other}={its_count} and {name}={count} cannot be: in topology {topology} they share a process; "
                f"wish for {group}=N",
                param=name,
            )
    found = {**counts, **{group: count for group, (_, count) in wished.items()}}
    if sum(found.values()) > most:
        told = f"{sum(found.values()):.4g} workers are too many; serve.max_workers of this server is {most}"
        raise InvalidRequest(told, param=next(iter(wish)))
    return found
