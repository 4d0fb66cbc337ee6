"""Registered memory of a consumer that READs over a network land in before their bytes are copied on.

A READ that its owner holds for good cannot be taken back: what it would write into must belong to nobody else for good.
So reads land in windows of their own, never in landing rows or KV blocks: a lost one costs its windows until it ends.
"""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.config import MIB, TransferSettings
from triptych.errors import TransferFailed
from triptych.transfer.arena import PAGE_BYTES
from triptych.transfer.cuda_runtime import allocate_or_borrow
from triptych.transfer.nixl_agent import NixlAgent

WORDS_BYTES = 64 << 10  # room for generation words in each window
_CUDA_WINDOW_BYTES = 128 * MIB
_LARGEST_CUDA_WINDOW_BYTES = 288 * MIB  # two in a row hold ten thousand tokens' KV of a 7B model
_WINDOWS_OF_A_GPU = 512  # more of them than it has room for altogether; a large GPU's are larger
_HOST_WINDOW_BYTES = 8 * MIB
_HOST_PART_BYTES = 4 * MIB  # stays in a cache until it is copied on; a GPU's reads are the cheaper the larger they are
_RECHECK_SECONDS = 0.01  # how often lost reads are asked whether they ended, while somebody waits for a window


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Memory for the reads of one pull.

    data:   [window bytes, or a few times as many] uint8
    words:  [WORDS_BYTES / 8] int64
    places: which of the windows it is, in a row
    """

    data: Tensor
    words: Tensor
    places: range


class Windows:
    """All windows of a worker, made and registered when this is. Thread-safe."""

    def __init__(self, agent: NixlAgent, device: torch.device, settings: TransferSettings) -> None:
        """Raises TransferFailed when there is no memory, or it cannot be registered."""
        self.window_bytes = window_bytes(device, settings)
        self.most_of_one_read = most_of_one_read(device)
        count = settings.nixl_windows
        memory = _memory(device, count * (self.window_bytes + WORDS_BYTES))
        agent.register(memory)
        # Data apart from words: windows in a row are one larger window.
        self._data, self._words = memory[: count * self.window_bytes], memory[count * self.window_bytes :]
        self._changed = threading.Condition()
        self._free = set(range(count))
        self._lost: list[tuple[Window, str, Callable[[], bool]]] = []
        self._held: Counter[str] = Counter()  # by owner, lost ones too
        self._most_of_one = max(1, count // 2)

    def take(self, owner: str, deadline: float, num_bytes: int = 0) -> Window:
        """A window of nobody else's, for reads of one owner; give it back, or lose it.

        num_bytes: to be read altogether. Where one window has no room for them and its neighbours are free, it is as
                   many as have, of those that the owner may have
        Raises TransferFailed when there is none in time. An owner never has more than half of them: one that stands
        still leaves the others some.
        """
        with self._changed:
            while not self._may_take(owner):
                left = deadline - time.monotonic()
                if left <= 0:
                    lost = f"{sum(len(window.places) for window, _, _ in self._lost)} wait for lost reads to end"
                    raise TransferFailed(f"no window is free for a read, {self._held[owner]} are the owner's; {lost}")
                self._changed.wait(min(left, _RECHECK_SECONDS) if self._lost else left)
            of_use = min(num_bytes, 2 * self.most_of_one_read)  # one is read while the one before is copied on
            wanted = max(1, -(-of_use // self.window_bytes))
            places = self._in_a_row(min(wanted, self._most_of_one - self._held[owner]))
            self._held[owner] += len(places)
            self._free.difference_update(places)
            return self._window(places)

    def give_back(self, window: Window, owner: str) -> None:
        with self._changed:
            self._take_back(window, owner)
            self._changed.notify_all()

    def lose(self, window: Window, owner: str, ended: Callable[[], bool]) -> None:
        """The window comes back by itself once `ended` says that nothing touches it any more."""
        with self._changed:
            self._lost.append((window, owner, ended))
            self._changed.notify_all()

    def num_lost(self) -> int:
        """Windows that lost reads still hold."""
        with self._changed:
            self._recover()
            return sum(len(window.places) for window, _, _ in self._lost)

    def _may_take(self, owner: str) -> bool:
        self._recover()
        return bool(self._free) and self._held[owner] < self._most_of_one

    def _recover(self) -> None:
        back = [entry for entry in self._lost if entry[2]()]
        self._lost = [entry for entry in self._lost if entry not in back]
        for window, owner, _ in back:
            self._take_back(window, owner)

    def _in_a_row(self, most: int) -> range:
        """The longest row of free windows, up to so many; at least one is free."""
        best, begin = range(0), 0
        for place in sorted(self._free):
            if place - 1 not in self._free:
                begin = place
            if place - begin < most and place + 1 - begin > len(best):
                best = range(begin, place + 1)
        return best

    def _window(self, places: range) -> Window:
        data = self._data[places.start * self.window_bytes : places.stop * self.window_bytes]
        words = self._words[places.start * WORDS_BYTES : (places.start + 1) * WORDS_BYTES]
        return Window(data, words.view(torch.int64), places)

    def _take_back(self, window: Window, owner: str) -> None:
        self._free.update(window.places)
        self._held[owner] -= len(window.places)
        if not self._held[owner]:
            del self._held[owner]


def window_bytes(device: torch.device, settings: TransferSettings) -> int:
    """Of each window of a worker on that device."""
    usual = settings.nixl_window_bytes
    if not usual and device.type == "cuda":
        usual = usual_cuda_window(torch.cuda.get_device_properties(device).total_memory)
    return _whole_pages(usual or _HOST_WINDOW_BYTES)


def usual_cuda_window(total_bytes: int) -> int:
    """Bytes of a window on a GPU with so much memory. The larger they are, the fewer READs, each of its own cost."""
    return min(max(_CUDA_WINDOW_BYTES, total_bytes // _WINDOWS_OF_A_GPU), _LARGEST_CUDA_WINDOW_BYTES)


def most_of_one_read(device: torch.device) -> int:
    """Bytes that one READ brings at the most, where its window has room for more."""
    return sys.maxsize if device.type == "cuda" else _HOST_PART_BYTES


def _memory(device: torch.device, num_bytes: int) -> Tensor:
    """Where there is a way, outside of torch's allocator, whose segments may be mapped anew under a registration.

    Raises TransferFailed when there is not enough.
    """
    if device.type == "cuda":
        return allocate_or_borrow(device, num_bytes)[0]
    try:
        with torch.inference_mode(False):
            return torch.empty(num_bytes, dtype=torch.uint8)
    except RuntimeError as error:
        raise TransferFailed(f"there are no {num_bytes} bytes for windows, as transfer.nixl_ settings ask") from error


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
