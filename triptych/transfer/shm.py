"""Owner and consumer are processes of one host: the owner's memfd, mapped read-only."""

import fcntl
import mmap
import os
import stat

import numpy as np
import numpy.typing as npt
import torch

from triptych.errors import TransferFailed
from triptych.multimodal.memfd import host_id
from triptych.transfer.arena import ArenaInfo, ShmInfo, probe_mismatch
from triptych.transfer.host_slab import SIZE_SEALS


class ShmMapping:
    """A neighbour's slab in host memory. Its pages stay mapped while any tensor over them lives."""

    transport = "shm"

    def __init__(self, info: ArenaInfo, memory: mmap.mmap) -> None:
        pages = _readable(memory)
        words_end = info.words_offset + info.num_units * 8
        self.info = info
        self.device = torch.device("cpu")
        self.data = torch.from_numpy(pages[info.data_offset : info.data_offset + info.data_bytes])
        self.words = torch.from_numpy(pages[info.words_offset : words_end].view(np.int64))

    def wait_event(self, index: int, deadline: float) -> None:
        """The owner announces host memory only once it is written."""

    def close(self) -> None:
        self.data, self.words = torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.int64)


def open_shm(info: ArenaInfo, device: torch.device) -> ShmMapping:
    """Raises TransferFailed with the reason why this arena cannot be read through shared memory."""
    where = info.shm
    if where is None:
        raise TransferFailed("the arena is not in host memory")
    if device.type != "cpu":
        raise TransferFailed(f"the arena is in host memory, the reader on {device}")
    if where.host_id != host_id():
        raise TransferFailed(f"the owner is on host {where.host_id}, this process on {host_id()}")
    fd = _open(where)
    try:
        memory = _map(info, where, fd)
    except (OSError, ValueError) as error:
        raise TransferFailed(f"cannot map descriptor {where.fd} of process {where.pid}: {error}") from error
    finally:
        os.close(fd)  # the mapping holds the memory
    mismatch = probe_mismatch(info, memory[: len(info.probe)])
    if mismatch:
        raise TransferFailed(f"descriptor {where.fd} of process {where.pid}: {mismatch}")
    return ShmMapping(info, memory)


def _open(where: ShmInfo) -> int:
    # Pid and number may have been reused for anything: O_NONBLOCK so that a pipe or a terminal cannot hold us.
    try:
        return os.open(f"/proc/{where.pid}/fd/{where.fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if not os.path.exists(f"/proc/{where.pid}"):
            raise TransferFailed(f"the owner, process {where.pid}, is gone") from error
        raise TransferFailed(f"cannot open descriptor {where.fd} of process {where.pid}: {error.strerror}") from error


def _map(info: ArenaInfo, where: ShmInfo, fd: int) -> mmap.mmap:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise TransferFailed(f"descriptor {where.fd} of process {where.pid} is no memory file")
    if status.st_size != info.num_bytes:
        raise TransferFailed(
            f"descriptor {where.fd} of process {where.pid} holds {status.st_size} bytes, the arena has {info.num_bytes}"
        )
    if _seals(fd) & SIZE_SEALS != SIZE_SEALS:
        raise TransferFailed(f"descriptor {where.fd} of process {where.pid} may shrink while it is read")
    return mmap.mmap(fd, info.num_bytes, mmap.MAP_SHARED, mmap.PROT_READ)


def _seals(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:  # a file of another kind, which has no seals
        return 0


class _Pages:
    """Read-only memory shown to numpy and torch as if it could be written, and kept mapped while they hold it.

    Torch has no read-only tensors and warns about each one made from read-only memory. Nothing here writes through
    these tensors, and whatever did would die at once of the pages' own protection.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        address, _ = np.frombuffer(memory, dtype=np.uint8).__array_interface__["data"]
        self.__array_interface__ = {"version": 3, "shape": (len(memory),), "typestr": "|u1", "data": (address, False)}


def _readable(memory: mmap.mmap) -> npt.NDArray[np.uint8]:
    return np.asarray(_Pages(memory))
