"""What whoever keeps the workers tells of them: values, which may cross a process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triptych.cluster.actors import WorkerAddress
from triptych.cluster.groups import groups_of
from triptych.cluster.reconcile import State
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


@dataclass(frozen=True, slots=True)
class View:
    """All workers at one moment.

    counts:   workers that are wanted, by group
    failures: why workers that are not there have failed, by id
    news:     numbered lines for whoever watches, the latest ones
    is_lost:  Ray itself has gone, and the workers with it
    """

    topology: str
    counts: Mapping[str, int]
    workers: tuple[WorkerView, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    news: tuple[tuple[int, str], ...] = ()
    is_lost: bool = False

    @property
    def addresses(self) -> list[WorkerAddress]:
        """What routers are to know."""
        return [worker.address for worker in self.workers if worker.address is not None]

    def coming(self) -> list[dict[str, Any]]:
        """As JSON values, for routers: workers that they may not have met yet, and how far each is."""
        groups = groups_of(self.topology)
        notes = {name: (name.rpartition("-")[0], f"down: {reason}") for name, reason in self.failures.items()}
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
                "state": "joining" if worker.worker_id in joining else str(worker.state),
                "note": worker.note,
            }
            for worker in self.workers
        ]
        ready = [worker["group"] for worker in workers if worker["state"] == State.READY]
        groups = {name: {"wanted": count, "ready": ready.count(name)} for name, count in self.counts.items()}
        settled = len(ready) == len(workers) and all(each["wanted"] == each["ready"] for each in groups.values())
        return {
            "object": "scale",
            "topology": self.topology,
            "groups": groups,
            "workers": workers,
            "failures": dict(self.failures),
            "settled": settled,
        }
