"""Numbers on their way to the device."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triptych.transfer.cuda_events import has_completed, new_sleeping_event

Numbers = NDArray[np.generic]

_ALIGNMENT = 16  # bytes; what vectorised loads of any type are content with
_FIRST_BYTES = 1 << 20
_BUFFERS = 6  # two steps are under way at most, with three shipments each


def ship(values: Tensor, device: torch.device) -> Tensor:
    """The host tensor on the device, without waiting for it; itself where the device is the host.

    Through pinned memory: an asynchronous copy from anywhere else would wait for its own staging.
    """
    return values if device.type == "cpu" else values.pin_memory().to(device, non_blocking=True)


class Stage:
    """Host arrays go to the device side by side, in one copy out of pinned memory that nobody waits for.

    The pinned buffers are used in turn, each again once the device has read it. Used by one thread.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers = [_Pinned() for _ in range(_BUFFERS)] if device.type == "cuda" else []
        self._next = 0

    def send(self, arrays: Sequence[Numbers]) -> list[Tensor]:
        """The arrays on the device; on the CPU their own memory."""
        if self._device.type == "cpu":
            return [torch.from_numpy(array) for array in arrays]
        target = torch.empty(places(arrays)[1], dtype=torch.uint8, device=self._device)
        self.put(arrays, target)
        return views(target, arrays)

    def put(self, arrays: Sequence[Numbers], into: Tensor) -> None:
        """The arrays packed, as `views` finds them again, into at least so many bytes [bytes] uint8 on the device."""
        begins, total = places(arrays)
        if self._device.type == "cpu":
            _pack(into.numpy(), arrays, begins)
            return
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % len(self._buffers)
        buffer.fill(arrays, begins, total)
        buffer.copy_to(into[:total])


class _Pinned:
    """Pinned memory that grows to what was ever asked of it."""

    def __init__(self) -> None:
        self._used = new_sleeping_event()
        self._grow(_FIRST_BYTES)

    def fill(self, arrays: Sequence[Numbers], begins: Sequence[int], total: int) -> None:
        if not has_completed(self._used):
            self._used.synchronize()
        if total > len(self._bytes):
            self._grow(2 * total)
        _pack(self._bytes, arrays, begins)

    def copy_to(self, target: Tensor) -> None:
        target.copy_(self._tensor[: target.numel()], non_blocking=True)
        self._used.record()

    def _grow(self, num_bytes: int) -> None:
        # An ordinary tensor: stages are made and used inside and outside of inference mode.
        with torch.inference_mode(False):
            self._tensor = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        self._bytes: NDArray[np.uint8] = self._tensor.numpy()


def places(arrays: Sequence[Numbers]) -> tuple[list[int], int]:
    """Where each array begins when they are packed one behind the other, and the bytes of all."""
    begins, end = [], 0
    for array in arrays:
        begins.append(end)
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    return begins, end


def _pack(packed: NDArray[np.uint8], arrays: Sequence[Numbers], begins: Sequence[int]) -> None:
    for array, begin in zip(arrays, begins, strict=True):
        packed[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array


def views(packed: Tensor, arrays: Sequence[Numbers]) -> list[Tensor]:
    """Of packed arrays of these shapes and types."""
    begins, _ = places(arrays)
    return [
        packed[begin : begin + array.nbytes].view(_TORCH[array.dtype.char]).view(array.shape)
        for array, begin in zip(arrays, begins, strict=True)
    ]


_TORCH = {
    np.dtype(kind).char: torch.from_numpy(np.zeros(0, dtype=kind)).dtype
    for kind in (np.int64, np.int32, np.float64, np.float32, np.uint8)
}
