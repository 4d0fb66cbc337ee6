"""Which worker gets what: pure functions over a columnar snapshot of the fleet.

The fleet keeps the columns up to date in place; rows are in the order of worker ids, so that the first of several
equals is the one with the lowest id. Reported load is as old as the worker's last status; what this router has placed
since then stands in columns of its own and is added.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triptych.errors import NoWorker
from triptych.journey import Role

Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(slots=True)
class RoleColumns:
    """One role's view of all workers, one row each.

    ready:    takes work of this role now: fit, answering, not draining
    reported: load the worker told last (encoder or prefill tokens queued; for decode, blocks in use and reserved)
    booked:   load this router has placed that no report covers yet, same unit
    room:     what the worker has altogether, same unit; infinite where load only queues
    """

    ready: BoolArray
    reported: Float64Array
    booked: Float64Array
    room: Float64Array

    @classmethod
    def empty(cls, num_workers: int) -> "RoleColumns":
        zeros = np.zeros(num_workers)
        return cls(np.zeros(num_workers, dtype=np.bool_), zeros.copy(), zeros.copy(), np.full(num_workers, np.inf))


@dataclass(slots=True)
class Snapshot:
    """What placement knows about the fleet; row i of every column is worker_ids[i].

    token_limits: tokens of prompt and output together that a worker takes
    item_limits:  encoder tokens of the largest item that a worker takes
    """

    worker_ids: tuple[str, ...]
    row_by_id: dict[str, int]
    roles: dict[Role, RoleColumns]
    token_limits: Float64Array
    item_limits: Float64Array

    @classmethod
    def of(cls, worker_ids: Sequence[str]) -> "Snapshot":
        ordered = tuple(sorted(worker_ids))
        rows = {worker_id: row for row, worker_id in enumerate(ordered)}
        columns = {role: RoleColumns.empty(len(ordered)) for role in Role}
        unlimited = np.full(len(ordered), np.inf)
        return cls(ordered, rows, columns, unlimited, unlimited.copy())

    def token_limit(self) -> float:
        """Of the ready decode worker that takes most; infinite where none is ready."""
        ready = self.roles[Role.DECODE].ready
        return float(self.token_limits[ready].max()) if ready.any() else np.inf

    def item_limit(self) -> float:
        """Of the ready encoder that takes most; infinite where none is ready."""
        ready = self.roles[Role.ENCODE].ready
        return float(self.item_limits[ready].max()) if ready.any() else np.inf


def place_items(
    columns: RoleColumns,
    encoder_tokens: Sequence[int],
    avoid: Collection[int] = (),
    limits: Float64Array | None = None,
) -> list[int]:
    """Row for each item, in order: the encoder with the least queued tokens, counting the items placed before it.

    avoid:  rows used only where no other is ready
    limits: encoder tokens of the largest item that each worker takes; None: no worker has a limit
    Raises NoWorker, also where none that is ready takes an item of this size.
    """
    if not columns.ready.any():
        raise NoWorker(f"no {Role.ENCODE} worker is ready")
    load = np.where(columns.ready, columns.reported + columns.booked, np.inf)
    shunned = list(avoid)
    rows = []
    for tokens in encoder_tokens:
        open_to = load if limits is None else np.where(limits >= tokens, load, np.inf)
        row = _least(open_to, shunned)
        if not np.isfinite(open_to[row]):
            raise NoWorker(f"no {Role.ENCODE} worker that is ready takes an item of {tokens} encoder tokens")
        load[row] += tokens
        rows.append(row)
    return rows


def _least(load: Float64Array, shunned: list[int]) -> int:
    """The first row of least load, a shunned one only where all others are infinite."""
    if shunned:
        others = load.copy()
        others[shunned] = np.inf
        row = int(others.argmin())
        if np.isfinite(others[row]):
            return row
    return int(load.argmin())


def place_prompt(columns: RoleColumns, avoid: Collection[int] = ()) -> int:
    """Row of the prefill worker with the least queued tokens. Raises NoWorker."""
    ready = _candidates(columns, Role.PREFILL, avoid)
    return int(np.where(ready, columns.reported + columns.booked, np.inf).argmin())


def place_stream(columns: RoleColumns, avoid: Collection[int] = ()) -> int:
    """Row of the decode worker with the most free blocks. Raises NoWorker."""
    ready = _candidates(columns, Role.DECODE, avoid)
    return int(np.where(ready, columns.room - columns.reported - columns.booked, -np.inf).argmax())


def _candidates(columns: RoleColumns, role: Role, avoid: Collection[int]) -> BoolArray:
    ready = columns.ready
    if avoid:
        others = ready.copy()
        others[list(avoid)] = False
        if others.any():
            return others
    if not ready.any():
        raise NoWorker(f"no {role} worker is ready")
    return ready
