"""Memory that embedding rows land in, from the moment their window has room until the rows are fused."""

from collections.abc import Iterable

import torch
from torch import Tensor

from triptych.errors import Cancelled, InvariantViolation, LayoutMismatch
from triptych.journey import Item, Layout, RequestId
from triptych.multimodal.rows import RowPiece
from triptych.transfer.cuda_events import new_idle_stream


class LandingMemory:
    """One tensor per item, made when its window is granted and dropped as soon as its last row is fused.

    How much may be out is the scheduler's business; this only holds it. Copies may write from any stream at once, and a
    copy must have ended before its item is reported as landed. Whoever still holds a view when a request ends keeps
    that memory alive, and writes into nobody else's; so does a step that reads rows, until it has ended. On CUDA the
    tensors come from a part of torch's memory that no kernel works in: it keeps apart what is allocated on different
    streams, and nothing is ever launched on theirs.
    """

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device, levels: int = 1) -> None:
        """width: numbers per row and level. levels: 1 + deepstack, side by side in a row."""
        self._width = levels * width
        self._dtype = dtype
        self._device = device
        self._stream = new_idle_stream(device) if device.type == "cuda" else None
        self._rows: dict[RequestId, dict[int, Tensor]] = {}

    @property
    def row_bytes(self) -> int:
        """All levels of one row."""
        return self._width * self._dtype.itemsize

    def open(self, request_id: RequestId, items: Iterable[Item]) -> None:
        """Room for the rows of these items, beside those of the request that are open already.

        Raises what torch raises when the device is full; then none of these items is open. Raises InvariantViolation
        for an item that is.
        """
        with torch.cuda.stream(self._stream):  # the current one where there is none
            made = {
                item.index: torch.empty(item.rows, self._width, dtype=self._dtype, device=self._device)
                for item in items
            }
        held = self._rows.get(request_id, {})
        if twice := held.keys() & made.keys():
            raise InvariantViolation(f"landing memory of item {min(twice)} is open already")
        self._rows[request_id] = held | made

    def view(self, request_id: RequestId, item_index: int) -> Tensor:
        """[rows, levels * width] to read an item's rows into. Raises Cancelled when the request has ended.

        Raises LayoutMismatch for an item that awaits no rows: not of the prompt, of no window granted yet, or fused.
        """
        items = self._rows.get(request_id)
        if items is None:
            raise Cancelled("the prompt that these rows are for has ended", item_index=item_index)
        if item_index not in items:
            raise LayoutMismatch(f"the prompt awaits no rows of item {item_index}", item_index=item_index)
        return items[item_index]

    def rows(self, request_id: RequestId, piece: RowPiece) -> Tensor:
        """[row_end - row_begin, levels * width]: a view of rows that have landed."""
        return self._rows[request_id][piece.item_index][piece.row_begin : piece.row_end]

    def drop_fused(self, request_id: RequestId, layout: Layout, num_computed: int) -> int:
        """Forget the items whose last row lies before that position; their size in bytes."""
        items = self._rows.get(request_id, {})
        fused = [item for item in layout.items if item.index in items and item.runs[-1].end <= num_computed]
        for item in fused:
            del items[item.index]
        return sum(item.rows for item in fused) * self.row_bytes

    def close(self, request_id: RequestId) -> None:
        """Forget what is left of a request; nothing when there is nothing."""
        self._rows.pop(request_id, None)

    def check(self, num_bytes: int) -> None:
        """Raises InvariantViolation unless that many bytes are held."""
        held = sum(rows.nbytes for items in self._rows.values() for rows in items.values())
        if held != num_bytes:
            raise InvariantViolation(f"{held} bytes of landing memory are held, {num_bytes} are reserved")
