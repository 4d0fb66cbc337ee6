"""The consumer's side of a slab: its words and data as tensors of this process, whatever lies between."""

import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from triptych.errors import TransferFailed
from triptych.transfer.arena import ArenaInfo

_FIRST_PAUSE_SECONDS = 20e-6
_LONGEST_PAUSE_SECONDS = 1e-3


class Mapping(Protocol):
    """One arena opened by one consumer. Read-only: other processes' memory is never written.

    data:  [num_units * unit_bytes] uint8
    words: [num_units] int64
    """

    transport: str  # local, shm, cuda_ipc, nixl
    info: ArenaInfo
    device: torch.device
    data: Tensor
    words: Tensor

    def wait_event(self, index: int, deadline: float) -> None:
        """Returns once the owner's event in that slot has completed. Blocks this thread alone, never a stream.

        Raises TransferFailed when the slot does not exist, or at the deadline (time.monotonic).
        """

    def close(self) -> None:
        """Closing again does nothing. Only after the last copy out of it has ended."""


def poll_until(done: Callable[[], bool], deadline: float, what: str) -> None:
    """Raises TransferFailed naming `what` when it is not done at the deadline (time.monotonic)."""
    pause = _FIRST_PAUSE_SECONDS
    while not done():
        left = deadline - time.monotonic()
        if left <= 0:
            raise TransferFailed(f"{what} is overdue")
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
