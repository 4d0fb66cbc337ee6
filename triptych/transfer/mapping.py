"""The consumer's side of a slab: its words and data as tensors of this process, whatever lies between."""

import os
import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from triptych.errors import TransferFailed
from triptych.transfer.arena import ArenaInfo

_EAGER_SECONDS = 200e-6  # most copies and reads end within; a pause, however short, is rarely under 80 us
_FIRST_PAUSE_SECONDS = 20e-6
_LONGEST_PAUSE_SECONDS = 1e-3
_OF_WHAT_PASSED = 1 / 8  # a pause is this part of the wait so far: what took a millisecond is noticed within an eighth


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
    """Raises TransferFailed naming `what` when it is not done at the deadline (time.monotonic).

    At first it keeps looking, and lets other threads go first each time; then it sleeps between two looks.
    """
    began = time.monotonic()
    while not done():
        now = time.monotonic()
        if now >= deadline:
            raise TransferFailed(f"{what} is overdue")
        if now - began < _EAGER_SECONDS:
            os.sched_yield()
            continue
        pause = max(_FIRST_PAUSE_SECONDS, min(_OF_WHAT_PASSED * (now - began), _LONGEST_PAUSE_SECONDS))
        time.sleep(min(pause, deadline - now))
