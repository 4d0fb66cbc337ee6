"""A slab in host memory: one sealed memfd that other processes of the host map read-only."""

import fcntl
import logging
import mmap
import os
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from triptych.errors import TransferFailed
from triptych.multimodal.memfd import host_id
from triptych.transfer.arena import ArenaInfo, ShmInfo, check_row_stamp, check_stamp, new_arena

log = logging.getLogger(__name__)

# A consumer that maps a file which is then cut short dies of SIGBUS at its next read: it asks for these seals.
SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
F_SEAL_FUTURE_WRITE = 0x10  # Linux 5.1; not in every Python's fcntl


def fence() -> None:
    """A full memory barrier between what this thread did before and what it does after the call.

    A generation word must be seen to change before any byte it guards does. Neither side is safe without a barrier:
    a large memcpy uses streaming stores, which x86 may show ahead of older stores, and Arm reorders plain loads and
    stores freely. Taking a lock is an acquire, giving it back a release; a release followed by an acquire lets nothing
    pass (on x86 either is a locked instruction anyway). Hence twice: release, then acquire, stand in the middle. Whose
    lock it is does not matter; one of our own is never waited for.
    """
    lock = threading.Lock()
    with lock:
        pass
    with lock:
        pass


class HostSlab:
    """Owner's side of a slab in host memory. Its memory lasts as long as any tensor over it does."""

    def __init__(self, kind: str, arena_id: int, unit_bytes: int, num_units: int) -> None:
        """Raises TransferFailed when the host has no memfd or no room, InvalidRecord for sizes that cannot be."""
        plan = new_arena(kind, arena_id, unit_bytes, num_units)
        self.device = torch.device("cpu")
        self.unit_bytes = unit_bytes
        self.num_units = num_units
        self._fd, memory = _allocate(plan)
        self._info = replace(plan, shm=ShmInfo(host_id(), os.getpid(), self._fd))
        self._words = np.frombuffer(memory, dtype=np.int64, count=num_units, offset=plan.words_offset)
        # Ordinary tensors, also when the model is built under inference mode: they are written outside of it too.
        with torch.inference_mode(False):
            self.words = torch.from_numpy(self._words)
            self.data = torch.frombuffer(memory, dtype=torch.uint8, count=plan.data_bytes, offset=plan.data_offset)

    def describe(self) -> ArenaInfo:
        return self._info

    def stamp(self, units: Sequence[int], generations: Sequence[int]) -> None:
        """Gives units a new generation, before the first byte of them is overwritten."""
        check_stamp(self._info, units, generations)
        self._words[list(units)] = generations
        # Nothing the caller writes into the units from here on is visible ahead of the words above.
        fence()

    def stamp_row(self, units: range, generation: int) -> None:
        """As `stamp`, of units in a row."""
        check_row_stamp(self._info, units, generation)
        self._words[units.start : units.stop] = generation
        fence()

    def order_after_stamps(self) -> None:
        """Stamps are done when the call returns."""

    def record_event(self) -> int:
        """Host memory is written when the call that writes it returns: there is nothing to wait for."""
        return 0

    def event_done(self, index: int) -> bool:
        return True

    def close(self) -> None:
        """Nobody can open the slab any more. Mappings and tensors that exist stay readable; they hold the memory."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self._words = np.empty(0, dtype=np.int64)
            self.words, self.data = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.uint8)


def _allocate(plan: ArenaInfo) -> tuple[int, mmap.mmap]:
    """The descriptor, and the memory mapped for reading and writing with its probe page filled in."""
    try:
        fd = os.memfd_create(f"triptych-{plan.kind}-{plan.id}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError) as error:
        raise TransferFailed(f"this host has no memfd for {plan.kind} arena {plan.id}: {error}") from error
    try:
        os.ftruncate(fd, plan.num_bytes)
        memory = mmap.mmap(fd, plan.num_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        memory[: len(plan.probe)] = plan.probe
        _seal(fd)
    except (OSError, ValueError) as error:
        os.close(fd)
        raise TransferFailed(
            f"cannot allocate {plan.num_bytes} bytes for {plan.kind} arena {plan.id}: {error}"
        ) from error
    return fd, memory


def _seal(fd: int) -> None:
    """No other size, and where the kernel can, no writable mapping but the one that exists."""
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SIZE_SEALS | F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)
    except OSError:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SIZE_SEALS | fcntl.F_SEAL_SEAL)
