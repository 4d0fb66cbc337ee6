"""From prepared items to rows in the slab: what the encoder does on the device."""

import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.engine.device_errors import DeviceLost, as_ours, is_device_lost
from triptych.engine.host_tier import Demotion, HostSlot
from triptych.errors import ConfigError, InternalError, LayoutMismatch, TriptychError
from triptych.models.base import Prepared, PreparedItem, PreparedPixels, VisionTower
from triptych.transfer.checksum import checksum
from triptych.transfer.slab import Slab

log = logging.getLogger(__name__)

# On CUDA the loop prepares and launches one batch while the device works on another; a third would only hold memory.
_BATCHES_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True, eq=False)
class PlacedItem:
    """A prepared item, or one whose rows are on the host, and the units its rows go to."""

    prepared: Prepared | None  # None: from the host
    span: range
    generation: int
    host: HostSlot | None = None

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

    def __init__(self, tower: VisionTower, slab: Slab, with_checksums: bool) -> None:
        self._tower = tower
        self._slab = slab
        self._unit_bytes = slab.describe().unit_bytes
        if self._unit_bytes % tower.dtype.itemsize:
            raise ConfigError(f"arena units have {self._unit_bytes} bytes, expected a multiple of {tower.dtype}")
        self._with_checksums = with_checksums
        self._cuda = tower.device.type == "cuda"
        self._stream = torch.cuda.Stream(tower.device) if self._cuda else None  # type: ignore[no-untyped-call]
        self._launched: deque[torch.cuda.Event] = deque()

    @property
    def row_numbers(self) -> int:
        """Numbers per row, all levels together."""
        return self._tower.levels * self._tower.width

    @property
    def row_bytes(self) -> int:
        return self.row_numbers * self._tower.dtype.itemsize

    def encode(self, batch: Sequence[PlacedItem], demotions: Sequence[Demotion] = ()) -> list[Written | TriptychError]:
        """Write each item's rows where it is placed. Of a failed batch each item is tried alone.

        demotions: rows to be copied to the host before anything is written

        Raises DeviceLost when the CUDA context is broken, which no item is to blame for.
        """
        if demotions or any(item.host is not None for item in batch):
            raise InternalError("there is no host tier to copy rows to or from")
        try:
            return list(self._write(batch))
        except Exception as error:
            if is_device_lost(error):
                raise DeviceLost(str(error)) from error
            if len(batch) == 1:
                return [as_ours(error, "encoding the image")]
            log.warning("a batch of %d items failed (%s), trying them one by one", len(batch), error)
        # Out of the handler: its traceback would keep the failed batch's tensors alive.
        return [self.encode([item])[0] for item in batch]

    def _write(self, batch: Sequence[PlacedItem]) -> list[Written]:
        self._await_room()
        with torch.inference_mode(), torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
            prepared = [item.prepared for item in batch if item.prepared is not None]
            rows = self._tower.encode(self._staged(prepared), tuple(item.grid for item in prepared))
            self._check_rows(rows, batch)
            self._stamp(batch)
            homes = [self._home(item) for item in batch]
            for home, piece in zip(homes, torch.split(rows, [len(home) for home in homes]), strict=True):
                home.copy_(piece)
            event = self._slab.record_event()
            self._note_launch()
            return [Written(event, checksum(home) if self._with_checksums else b"") for home in homes]

    def _staged(self, prepared: Sequence[Prepared]) -> Tensor:
        """All patches [encoder tokens, patch numbers] on the device."""
        pixels = [item for item in prepared if isinstance(item, PreparedPixels)]
        if pixels:
            return self._tower.patches([item.pixels for item in pixels], [item.grid for item in pixels])
        patches = [item.patches for item in prepared if isinstance(item, PreparedItem)]
        if not self._cuda:
            return torch.cat(patches)
        tokens = sum(piece.shape[0] for piece in patches)
        pinned = torch.empty(tokens, patches[0].shape[1], dtype=patches[0].dtype, pin_memory=True)
        # The pinned block is reused only after the copy: the host allocator follows the stream it was copied on.
        return torch.cat(patches, out=pinned).to(self._tower.device, non_blocking=True)

    def _check_rows(self, rows: Tensor, batch: Sequence[PlacedItem]) -> None:
        wanted = (sum(item.rows for item in batch), self.row_numbers)
        if tuple(rows.shape) != wanted or rows.dtype != self._tower.dtype:
            raise LayoutMismatch(
                f"the vision tower made rows {tuple(rows.shape)} of {rows.dtype}, "
                f"expected {wanted} of {self._tower.dtype}"
            )

    def _stamp(self, batch: Sequence[PlacedItem]) -> None:
        units = [unit for item in batch for unit in item.span]
        self._slab.stamp(units, [item.generation for item in batch for _ in item.span])

    def _home(self, item: PlacedItem) -> Tensor:
        """The item's rows [rows, row numbers] in the slab."""
        begin = item.span.start * self._unit_bytes
        home = self._slab.data[begin : begin + item.rows * self.row_bytes]
        return home.view(self._tower.dtype).view(item.rows, self.row_numbers)

    def _note_launch(self) -> None:
        if self._stream is not None:
            # Blocking: a thread that waits for it sleeps, where the default would keep a core busy.
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(self._stream)
            self._launched.append(event)

    def _await_room(self) -> None:
        while len(self._launched) >= _BATCHES_IN_FLIGHT:
            self._launched.popleft().synchronize()
