"""Copies given up while the device may still do them: nothing they touch may be reused before they have ended."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    ended: Callable[[], bool]
    into: Tensor
    on_end: Callable[[], None]


class Quarantine:
    """What abandoned copies read and write, kept alive until they end. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[_Held] = []

    def hold(self, ended: Callable[[], bool], into: Tensor, on_end: Callable[[], None]) -> None:
        """Keeps a copy into `into` until `ended()`; then calls `on_end` from whichever method notices."""
        with self._lock:
            self._held.append(_Held(ended, into, on_end))

    def let_go(self) -> int:
        """How many copies are still held, after letting go of those that have ended."""
        with self._lock:
            done = [held for held in self._held if held.ended()]
            self._held = [held for held in self._held if held not in done]
            left = len(self._held)
        for held in done:
            held.on_end()
        return left

    def writes_into(self, tensor: Tensor) -> bool:
        """Whether a held copy may still write into this memory."""
        if not self.let_go():
            return False
        with self._lock:
            return any(overlap(held.into, tensor) for held in self._held)


def overlap(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors share bytes, going by the span from first to last byte of each."""
    if left.device != right.device or not left.numel() or not right.numel():
        return False
    (left_begin, left_end), (right_begin, right_end) = _span(left), _span(right)
    return left_begin < right_end and right_begin < left_end


def _span(tensor: Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
