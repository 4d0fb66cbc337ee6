"""From prepared items to rows in the slab: what the encoder does on the device."""

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triptych.engine.capture import Work
from triptych.engine.cpu_threads import CpuThreads
from triptych.engine.encoder_blame import check_rows, encode_in_parts
from triptych.engine.encoder_graphs import BlockGraphs
from triptych.engine.host_tier import Demotion, HostSlot, HostTier
from triptych.errors import ConfigError, InternalError, TriptychError
from triptych.journey import Grid, Int64Array
from triptych.models.base import Prepared, VisionTower
from triptych.transfer.checksum import checksum
from triptych.transfer.cuda_events import LOWEST_PRIORITY, new_sleeping_event, new_stream
from triptych.transfer.slab import Slab

# On CUDA the loop prepares and launches one batch while the device works on another; a third would only hold memory.
_BATCHES_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True, eq=False)
class PlacedItem:
    """A prepared item, or one whose rows are on the host, and the units its rows go to."""

    prepared: Prepared | None  # None: from the host
    span: range
    generation: int
    host: HostSlot | None = None
    with_checksum: bool = False

    def __post_init__(self) -> None:
        if (self.prepared is None) == (self.host is None):
            raise InternalError(f"an item for units {self.span} is to be both encoded and copied, or neither")

    @property
    def rows(self) -> int:
        source = self.prepared or self.host
        assert source is not None
        return source.rows


@dataclass(frozen=True, slots=True)
class Written:
    """Rows that are in the slab once the event has completed (at once on the CPU)."""

    event: int
    checksum: bytes


class EncoderRunner:
    """The vision tower over one slab, on a stream of its own. Used by one thread."""

    def __init__(
        self,
        tower: VisionTower,
        slab: Slab,
        with_checksums: bool,
        host: HostTier | None = None,
        graphs: BlockGraphs | None = None,
    ) -> None:
        """graphs: the tower's blocks, captured over this slab; batches that fit none of them run eagerly"""
        self._tower = tower
        self._slab = slab
        self._host = host
        self._graphs = graphs
        self._unit_bytes = slab.describe().unit_bytes
        if self._unit_bytes % tower.dtype.itemsize:
            raise ConfigError(f"arena units have {self._unit_bytes} bytes, expected a multiple of {tower.dtype}")
        self._with_checksums = with_checksums
        self._threads = CpuThreads(tower.device)
        # Of the lowest priority: running answers, which one process may decode beside, go first.
        self._stream = new_stream(tower.device, LOWEST_PRIORITY) if tower.device.type == "cuda" else None
        self._launched: deque[torch.cuda.Event] = deque()

    @property
    def row_numbers(self) -> int:
        """Numbers per row, all levels together."""
        return self._tower.levels * self._tower.width

    @property
    def row_bytes(self) -> int:
        return self.row_numbers * self._tower.dtype.itemsize

    def encode(self, batch: Sequence[PlacedItem], demotions: Sequence[Demotion] = ()) -> list[Written | TriptychError]:
        """Write each item's rows where it is placed. An item that fails fails alone.

        demotions: rows to be copied to the host before anything is written

        Raises DeviceLost when the CUDA context is broken, which no item is to blame for.
        """
        with self._on_stream():
            if demotions:
                # First of all on the stream: units are overwritten only behind these copies.
                self._host_tier.copy_out(self._slab, demotions)
            kept = {at: encode_in_parts(self._restore, [item])[0] for at, item in enumerate(batch) if item.host}
            fresh = [item for item in batch if not item.host]
            made = iter(encode_in_parts(self._write, fresh) if fresh else ())
            return [kept[at] if at in kept else next(made) for at in range(len(batch))]

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        with torch.inference_mode(), torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
            yield

    @property
    def _host_tier(self) -> HostTier:
        if self._host is None:
            raise InternalError("there is no host tier to copy rows to or from")
        return self._host

    def _restore(self, batch: Sequence[PlacedItem]) -> list[Written]:
        """Rows from the host back into the slab, as they left it."""
        written = []
        for item in batch:
            assert item.host is not None, item
            self._stamp([item])
            self._host_tier.copy_in(self._slab, item.span, item.host)
            written.append(Written(self._slab.record_event(), item.host.checksum))
        return written

    def _write(self, batch: Sequence[PlacedItem]) -> list[Written]:
        self._await_room()
        prepared = [item.prepared for item in batch if item.prepared is not None]
        grids = [item.grid for item in prepared]
        self._threads.take(sum(grid.patches for grid in grids))
        patches = self._tower.patches([item.pixels for item in prepared], grids)
        store = self._captured(patches, grids, batch) or self._eager(patches, grids, batch)
        # Only now: items whose rows could not be made or are not what was planned leave the arena as it was.
        self._stamp(batch)
        store()
        event = self._slab.record_event()
        self._note_launch()
        wanted = [self._with_checksums or item.with_checksum for item in batch]
        sums = [checksum(self._home(item)) if sum_up else b"" for item, sum_up in zip(batch, wanted, strict=True)]
        return [Written(event, each) for each in sums]

    def _captured(self, patches: Tensor, grids: Sequence[Grid], batch: Sequence[PlacedItem]) -> Work | None:
        """What computes and stores the rows, where captured work fits the batch."""
        if self._graphs is None:
            return None
        places = [self._row_numbers(item) for item in batch]
        return self._graphs.prepare(patches, grids, np.concatenate(places))

    def _eager(self, patches: Tensor, grids: Sequence[Grid], batch: Sequence[PlacedItem]) -> Work:
        """Computes the rows; the result stores them."""
        lengths = [item.rows for item in batch]
        made = self._tower.encode(patches, tuple(grids))
        rows = check_rows(made, sum(lengths), self.row_numbers, self._tower.dtype)

        def store() -> None:
            for item, piece in zip(batch, torch.split(rows, lengths), strict=True):
                self._home(item).copy_(piece)

        return store

    def _stamp(self, batch: Sequence[PlacedItem]) -> None:
        units = [unit for item in batch for unit in item.span]
        self._slab.stamp(units, [item.generation for item in batch for _ in item.span])

    def _home(self, item: PlacedItem) -> Tensor:
        """The item's rows [rows, row numbers] in the slab."""
        begin = item.span.start * self._unit_bytes
        home = self._slab.data[begin : begin + item.rows * self.row_bytes]
        return home.view(self._tower.dtype).view(item.rows, self.row_numbers)

    def _row_numbers(self, item: PlacedItem) -> Int64Array:
        """Where in the slab the item's rows are, counted in rows."""
        begin = item.span.start * (self._unit_bytes // self.row_bytes)
        return np.arange(begin, begin + item.rows)

    def _note_launch(self) -> None:
        if self._stream is not None:
            event = new_sleeping_event()
            event.record(self._stream)
            self._launched.append(event)

    def _await_room(self) -> None:
        while len(self._launched) >= _BATCHES_IN_FLIGHT:
            self._launched.popleft().synchronize()
