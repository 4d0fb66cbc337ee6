"""What whoever keeps the workers tells of them: values, which may cross a process."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from triptych.cluster.actors import WorkerAddress
from triptych.cluster.groups import groups_of
from triptych.cluster.names import FIRST_SET, group_in, set_in
from triptych.cluster.reconcile import State
from triptych.cluster.sets import Phase
from triptych.errors import ClusterError
from triptych.journey import Role


def coming(worker_id: str, roles: frozenset[Role], note: str) -> dict[str, Any]:
    """One worker of those that routers may not have met yet, as JSON values."""
    return {"worker_id": worker_id, "roles": sorted(roles), "note": note}


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker; `address` where routers may give it work."""

    worker_id: str
    group: str
    state: State
    note: str = ""  # what is to be known beside the state
    address: WorkerAddress | None = None


def of_missing(
    failures: Mapping[str, str], workers: Sequence[WorkerView], counts: Mapping[str, int], sets: Collection[int]
) -> dict[str, str]:
    """Those failures whose workers are still wanted: their set stays, and others have not made up the number.

    failures: why each failed, by id; counts: workers wanted, by group, in each of these sets
    """
    names = {each.worker_id for each in workers}  # it comes again, and may fail again
    there = Counter(
        (set_in(each.worker_id), each.group) for each in workers if each.state in (State.STARTING, State.READY)
    )
    return {
        name: reason
        for name, reason in failures.items()
        if set_in(name) in sets
        and (name in names or there[set_in(name), group_in(name)] < counts.get(group_in(name), 0))
    }


@dataclass(frozen=True, slots=True)
class SetView:
    """Workers that have one model. requests: that routers have with them; kept_seconds: for which it stays at least"""

    number: int
    model: str
    phase: Phase
    requests: int = 0
    kept_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class View:
    """All workers at one moment.

    counts:   workers that are wanted, by group, in each set
    failures: why workers that are not there have failed, by id
    news:     numbered lines for whoever watches, the latest ones
    is_lost:  Ray itself has gone, and the workers with it
    sets:     one of which serves
    trouble:  why the last reload came to nothing
    turn:     how often another set has come to serve
    """

    topology: str
    counts: Mapping[str, int]
    workers: tuple[WorkerView, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    news: tuple[tuple[int, str], ...] = ()
    is_lost: bool = False
    sets: tuple[SetView, ...] = ()
    trouble: str = ""
    turn: int = 0

    def kept(self) -> Self:
        """Itself. Raises ClusterError where there is nobody any more who keeps the workers."""
        if self.is_lost:
            raise ClusterError("Ray has gone, or the cluster was ended, with all workers; start this server again")
        return self

    @property
    def serving(self) -> int:
        """The number of the set with which new requests begin."""
        return next((each.number for each in self.sets if each.phase is Phase.SERVING), FIRST_SET)

    def ready_in(self, number: int) -> Counter[str]:
        """Ready workers of a set, by group."""
        workers = [each for each in self.workers if set_in(each.worker_id) == number and each.state is State.READY]
        return Counter(each.group for each in workers)

    @property
    def addresses(self) -> list[WorkerAddress]:
        """What routers are to know."""
        return [worker.address for worker in self.workers if worker.address is not None]

    def coming(self) -> list[dict[str, Any]]:
        """As JSON values, for routers: workers that they may not have met yet, and how far each is."""
        groups = groups_of(self.topology)
        notes = {name: (group_in(name), f"down: {reason}") for name, reason in self.failures.items()}
        for worker in self.workers:
            if worker.state is State.READY:
                notes[worker.worker_id] = worker.group, "has loaded; requests come once all others have, too"
            elif worker.state is State.STARTING:
                notes[worker.worker_id] = worker.group, f"{worker.state}: {worker.note}"
        return [coming(name, groups[group], note) for name, (group, note) in notes.items()]

    def told(self, joining: frozenset[str] = frozenset()) -> dict[str, object]:
        """As JSON values, for operators. joining: ready workers that some router does not know yet."""
        workers = [
            {
                "worker_id": worker.worker_id,
                "group": worker.group,
                "set": set_in(worker.worker_id),
                "state": "joining" if worker.worker_id in joining else str(worker.state),
                "note": worker.note,
            }
            for worker in self.workers
        ]
        by_set = {
            number: Counter(each["group"] for each in workers if each["set"] == number and each["state"] == State.READY)
            for number in {self.serving, *(each.number for each in self.sets)}
        }
        groups = {name: {"wanted": count, "ready": by_set[self.serving][name]} for name, count in self.counts.items()}
        is_moving = any(each.phase in (Phase.COMING, Phase.LEAVING) for each in self.sets)
        settled = all(ready == self.counts for ready in by_set.values()) and not is_moving
        settled = settled and all(worker["state"] == State.READY for worker in workers)
        sets = [
            {
                "set": each.number,
                "model": each.model,
                "phase": str(each.phase),
                "ready": dict(by_set[each.number]),
                "requests": each.requests,
                "kept_seconds": round(each.kept_seconds, 1),
            }
            for each in self.sets
        ]
        return {
            "object": "scale",
            "topology": self.topology,
            "groups": groups,
            "workers": workers,
            "failures": dict(self.failures),
            "settled": settled,
            "sets": sets,
            "trouble": self.trouble,
        }
