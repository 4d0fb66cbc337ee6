"""Registered memory of a consumer that READs over a network land in before their bytes are copied on.

A READ that its owner holds for good cannot be taken back: what it would write into must belong to nobody else for good.
So reads land in windows of their own, never in landing rows or KV blocks: a lost one costs a window until it ends.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.config import MIB, TransferSettings
from triptych.errors import TransferFailed
from triptych.transfer.arena import PAGE_BYTES
from triptych.transfer.cuda_runtime import allocate
from triptych.transfer.nixl_agent import NixlAgent

WORDS_BYTES = 64 << 10  # room for generation words in each window
_CUDA_WINDOW_BYTES = 128 * MIB
_HOST_WINDOW_BYTES = 8 * MIB
_RECHECK_SECONDS = 0.01  # how often lost reads are asked whether they ended, while somebody waits for a window


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Memory for one read at a time.

    data:  [window bytes] uint8
    words: [WORDS_BYTES / 8] int64
    """

    data: Tensor
    words: Tensor


class Windows:
    """All windows of a worker, made and registered when this is. Thread-safe."""

    def __init__(self, agent: NixlAgent, device: torch.device, settings: TransferSettings) -> None:
        """Raises TransferFailed when there is no memory, or it cannot be registered."""
        usual = _CUDA_WINDOW_BYTES if device.type == "cuda" else _HOST_WINDOW_BYTES
        self.window_bytes = _whole_pages(settings.nixl_window_bytes or usual)
        step = self.window_bytes + WORDS_BYTES
        memory = _memory(device, settings.nixl_windows * step)
        agent.register(memory)
        self._changed = threading.Condition()
        self._free = [_window(memory[begin : begin + step]) for begin in range(0, memory.numel(), step)]
        self._lost: list[tuple[Window, Callable[[], bool]]] = []

    def take(self, deadline: float) -> Window:
        """A window of nobody else's; give it back, or lose it. Raises TransferFailed when none is free in time."""
        with self._changed:
            while not self._free:
                self._recover()
                left = deadline - time.monotonic()
                if self._free:
                    break
                if left <= 0:
                    raise TransferFailed(f"no window is free for a read; {len(self._lost)} wait for lost reads to end")
                self._changed.wait(min(left, _RECHECK_SECONDS) if self._lost else left)
            return self._free.pop()

    def give_back(self, window: Window) -> None:
        with self._changed:
            self._free.append(window)
            self._changed.notify()

    def lose(self, window: Window, ended: Callable[[], bool]) -> None:
        """The window comes back by itself once `ended` says that nothing touches it any more."""
        with self._changed:
            self._lost.append((window, ended))
            self._changed.notify()

    def num_lost(self) -> int:
        """Windows that lost reads still hold."""
        with self._changed:
            self._recover()
            return len(self._lost)

    def _recover(self) -> None:
        back = [entry for entry in self._lost if entry[1]()]
        self._lost = [entry for entry in self._lost if entry not in back]
        self._free.extend(window for window, _ in back)


def _window(memory: Tensor) -> Window:
    return Window(memory[:-WORDS_BYTES], memory[-WORDS_BYTES:].view(torch.int64))


def _memory(device: torch.device, num_bytes: int) -> Tensor:
    """Outside of torch's caching allocator, whose segments may be mapped anew under a registration."""
    if device.type == "cuda":
        return allocate(device, num_bytes).tensor()
    with torch.inference_mode(False):
        return torch.empty(num_bytes, dtype=torch.uint8)


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
