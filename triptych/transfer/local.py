"""Owner and consumer are one process: the mapping is the slab itself."""

from collections.abc import Mapping as MappingOf

import torch

from triptych.errors import TransferFailed
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.mapping import poll_until
from triptych.transfer.slab import Slab


class LocalMapping:
    """A slab of this process, seen by a consumer of this process."""

    transport = "local"

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self.info = slab.describe()
        self.device = slab.device
        self.data = slab.data
        self.words = slab.words

    def wait_event(self, index: int, deadline: float) -> None:
        poll_until(lambda: self._slab.event_done(index), deadline, f"event {index} of {self.info.kind} arena")

    def close(self) -> None:
        """The slab is its owner's to close."""


def open_local(info: ArenaInfo, device: torch.device, local_slabs: MappingOf[int, Slab]) -> LocalMapping:
    """Raises TransferFailed unless the arena is one of this process's own slabs, on the consumer's device."""
    slab = local_slabs.get(info.id)
    # Arena ids repeat from worker to worker, probe pages do not.
    if slab is None or slab.describe().probe != info.probe:
        raise TransferFailed("not an arena of this process")
    if slab.device != device:
        raise TransferFailed(f"the arena is on {slab.device}, the reader on {device}")
    return LocalMapping(slab)
