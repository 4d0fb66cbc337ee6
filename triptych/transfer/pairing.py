"""Which transport joins this process to an arena: the first whose probe reads back, each refusal with its reason."""

import logging
from collections.abc import Callable
from collections.abc import Mapping as MappingOf

import torch

from triptych.errors import TransferFailed
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.cuda_ipc import open_cuda_ipc
from triptych.transfer.local import open_local
from triptych.transfer.mapping import Mapping
from triptych.transfer.shm import open_shm
from triptych.transfer.slab import Slab

log = logging.getLogger(__name__)


def open_mapping(info: ArenaInfo, device: torch.device, local_slabs: MappingOf[int, Slab]) -> Mapping:
    """The arena opened by the nearest transport that works: same process, then CUDA IPC, then shared memory.

    Raises TransferFailed with every transport's reason when none does.
    """
    paths: tuple[tuple[str, Callable[[], Mapping]], ...] = (
        ("local", lambda: open_local(info, device, local_slabs)),
        ("cuda_ipc", lambda: open_cuda_ipc(info, device)),
        ("shm", lambda: open_shm(info, device)),
    )
    reasons = []
    for name, open_path in paths:
        try:
            mapping = open_path()
        except TransferFailed as error:
            reasons.append(f"{name}: {error.message}")
            continue
        log.info("%s arena %d opened by %s (%s)", info.kind, info.id, name, "; ".join(reasons) or "first choice")
        return mapping
    raise TransferFailed(f"no transport reaches {info.kind} arena {info.id}: " + "; ".join(reasons))
