"""Slabs: the memory a worker lets others read, allocated and exported once at start. The owner's side.

Each unit of a slab's data is guarded by a generation word in the slab itself. The owner stamps a new generation before
the first overwriting byte; a reader copies the data first and the words after, so a copy that saw an overwriting byte
also sees the new word.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from triptych.errors import TransferFailed
from triptych.transfer.arena import ArenaInfo, CudaIpcInfo, ShmInfo
from triptych.transfer.cuda_runtime import concrete_device
from triptych.transfer.cuda_slab import CudaSlab
from triptych.transfer.host_slab import HostSlab

__all__ = ["ArenaInfo", "CudaIpcInfo", "ShmInfo", "Slab", "create_slab"]


class Slab(Protocol):
    """One allocation with its generation words, mapped by others through what `describe` tells.

    data:  [num_units * unit_bytes] uint8, zero at first
    words: [num_units] int64, one generation per unit, 0 at first; written by `stamp` alone
    """

    device: torch.device
    unit_bytes: int  # that one word guards
    num_units: int
    data: Tensor
    words: Tensor

    def describe(self) -> ArenaInfo:
        """What a consumer needs to map the slab."""

    def stamp(self, units: Sequence[int], generations: Sequence[int]) -> None:
        """Gives units (each named once) a new generation of at least 1, before the first overwriting byte.

        On CUDA queued on the current stream, without waiting: queue the overwriting kernels behind it on that stream,
        and stamp one slab from one stream.
        Raises InvalidRecord for a unit that does not exist.
        """

    def stamp_row(self, units: range, generation: int) -> None:
        """As `stamp`, all of a row alike; costs as little for thousands of units as for one."""

    def order_after_stamps(self) -> None:
        """On CUDA, makes the current stream wait for the stamps queued so far on others.

        For writing into stamped units from another stream than the one they were stamped on, as copies do.
        """

    def record_event(self) -> int:
        """Number of an event behind everything queued on the current stream so far, from 1 on (0 in host memory).

        Events are a ring. A consumer that comes late waits for a later event in the same slot instead, which is
        enough as long as all of them are recorded on one stream: record from the stream that writes the slab.
        """

    def event_done(self, index: int) -> bool:
        """Whether the work before the event of that number has ended; never waits."""

    def close(self) -> None:
        """Ends the export; closing again does nothing. The memory goes with the last tensor over it."""


def create_slab(kind: str, arena_id: int, unit_bytes: int, num_units: int, device: torch.device) -> Slab:
    """A slab of the given kind (embedding, kv) on a device: a memfd on the CPU, cudaMalloc on CUDA.

    Raises TransferFailed when it cannot be allocated or exported, InvalidRecord for sizes that cannot be.
    """
    if device.type == "cpu":
        return HostSlab(kind, arena_id, unit_bytes, num_units)
    if device.type == "cuda":
        return CudaSlab(kind, arena_id, unit_bytes, num_units, concrete_device(device))
    raise TransferFailed(f"no slab on a device of type {device.type}, expected cpu or cuda")
