"""Faults between the tiers of a served cluster, injected where none of our checks look any more.

Every check stays on and passes: media and layout digests, row counts, checksums of copied rows, grids against the
image processor's. What is spoilt lies below them:

    swapped     rows of two items of a prompt that have equally many: their bytes, in the prefill worker's landing
                memory, after the copies were verified and before the engine is told that they have landed
    dropped     there, too: zeros for the rows of the first item
    rotated     there, too: each item's rows one place on, the last one first
    sequential  the rope positions of the layout, after prefill and decode worker have verified its digest: 0, 1, 2, ...
                for images as for text, on all three axes
    grid        what the vision tower is told of each item, after the patches were held against the planned grid: sides
                changed about or, of a square, other ones with as many patches

Which one is in force says a file, so that one cluster serves them all. The encoder keeps rows by the digest of the
source bytes: between `grid` and the others each picture must come as another file.
"""

import enum
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from triptych.engine.jobs import DecodeJob, DecodeSink, PrefillJob, PrefillSink
from triptych.engine.loop import LanguageEngine
from triptych.journey import Grid, Layout, RequestId, RopeRun
from triptych.models.base import VisionTower

MERGE = 2  # patches on each side of an embedding row


class Fault(enum.StrEnum):
    NONE = "none"
    SWAPPED = "swapped"
    DROPPED = "dropped"
    ROTATED = "rotated"
    SEQUENTIAL = "sequential"
    GRID = "grid"


ON_ROWS = (Fault.SWAPPED, Fault.DROPPED, Fault.ROTATED)


class Switch:
    """The file that names the fault in force; none until it is set."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def fault(self) -> Fault:
        return Fault(self.file.read_text()) if self.file.exists() else Fault.NONE

    def set(self, fault: Fault) -> None:
        """For requests that begin from now on; none should be running."""
        aside = self.file.with_suffix(".new")
        aside.write_text(fault)
        aside.replace(self.file)


class SpoiltEngine:
    """A language engine that gets spoilt rows and positions; for the rest it is the one it stands before."""

    def __init__(self, engine: LanguageEngine, switch: Switch) -> None:
        self._engine = engine
        self._switch = switch
        self._lock = threading.Lock()
        self._awaited: dict[RequestId, set[int]] = {}  # items whose rows have not landed
        self._num_items: dict[RequestId, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def prefill(self, job: PrefillJob, sink: PrefillSink) -> None:
        if job.layout.items:
            with self._lock:
                self._awaited[job.request_id] = {item.index for item in job.layout.items}
                self._num_items[job.request_id] = len(job.layout.items)
        self._engine.prefill(replace(job, layout=self._positioned(job.layout)), sink)

    def decode(self, job: DecodeJob, sink: DecodeSink) -> None:
        self._engine.decode(replace(job, layout=self._positioned(job.layout)), sink)

    def rows_landed(self, request_id: RequestId, item_index: int) -> None:
        """Held back until the last item's have: only then are there two to swap."""
        with self._lock:
            awaited = self._awaited.get(request_id, set())
            last = awaited == {item_index}
            awaited.discard(item_index)
            if not last:
                return
            items = range(self._num_items.pop(request_id))
            del self._awaited[request_id]
        spoil_rows(self._switch.fault, [self._engine.landing(request_id, item) for item in items])
        for item in items:
            self._engine.rows_landed(request_id, item)

    def cancel(self, request_id: RequestId) -> None:
        with self._lock:
            self._awaited.pop(request_id, None)
            self._num_items.pop(request_id, None)
        self._engine.cancel(request_id)

    def _positioned(self, layout: Layout) -> Layout:
        if self._switch.fault is not Fault.SEQUENTIAL:
            return layout
        return replace(layout, rope=(RopeRun(layout.num_tokens, (0, 0, 0)),))


class SpoiltTower:
    """A vision tower that is told wrong grids; for the rest it is the one it stands before."""

    def __init__(self, tower: VisionTower, switch: Switch) -> None:
        self._tower = tower
        self._switch = switch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tower, name)

    def encode(self, patches: Tensor, grids: tuple[Grid, ...]) -> Tensor:
        if self._switch.fault is Fault.GRID:
            grids = tuple(wrong_grid(grid) for grid in grids)
        return self._tower.encode(patches, grids)


def spoil_rows(fault: Fault, items: Sequence[Tensor]) -> None:
    """items: each item's rows [rows, width], changed in place"""
    if fault is Fault.SWAPPED and (pair := swapped_pair([len(rows) for rows in items])) is not None:
        first, second = (items[index] for index in pair)
        kept = first.clone()
        first.copy_(second)
        second.copy_(kept)
    elif fault is Fault.DROPPED:
        items[0].zero_()
    elif fault is Fault.ROTATED:
        for rows in items:
            rows.copy_(rows.roll(1, dims=0))


def swapped_pair(row_counts: Sequence[int]) -> tuple[int, int] | None:
    """The first two items with equally many rows; rows of others cannot be in each other's place unnoticed."""
    for second, count in enumerate(row_counts):
        if count in row_counts[:second]:
            return row_counts.index(count), second
    return None


def wrong_grid(grid: Grid) -> Grid:
    """As many patches, in whole merged cells, on other sides; the grid itself where it is a single cell."""
    if grid.h != grid.w:
        return replace(grid, h=grid.w, w=grid.h)
    cells = grid.h // MERGE * (grid.w // MERGE)
    h = max(side for side in range(1, grid.h // MERGE) if cells % side == 0) if cells > 1 else 1
    return replace(grid, h=h * MERGE, w=cells // h * MERGE)
