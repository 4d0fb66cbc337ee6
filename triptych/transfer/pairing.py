"""Which transport joins this process to an arena: the first whose probe reads back, each refusal with its reason."""

from collections.abc import Callable, Collection, Sequence
from collections.abc import Mapping as MappingOf

import torch

from triptych.config import TRANSPORTS
from triptych.errors import TransferFailed
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.cuda_ipc import open_cuda_ipc
from triptych.transfer.figures import NO_TRANSPORT, log_path
from triptych.transfer.local import open_local
from triptych.transfer.mapping import Mapping
from triptych.transfer.nixl import NixlCopier, PrepareClaim
from triptych.transfer.shm import open_shm
from triptych.transfer.slab import Slab

Tell = Callable[[ArenaInfo, str, Sequence[str]], None]


def open_mapping(
    info: ArenaInfo,
    device: torch.device,
    local_slabs: MappingOf[int, Slab],
    tell: Tell = log_path,
    *,
    nixl: NixlCopier | None = None,
    prepare: PrepareClaim | None = None,
    allowed: Collection[str] = TRANSPORTS,
) -> Mapping:
    """The arena opened by the nearest transport that works: same process, CUDA IPC, shared memory, NIXL.

    nixl:    where this process has NIXL
    prepare: how a claim is made ready at its owner, for NIXL
    allowed: others are not tried
    tell:    gets the arena, the transport (`none` where none works), and the reasons of those tried before
    Raises TransferFailed with every transport's reason when none does.
    """
    paths: tuple[tuple[str, Callable[[], Mapping]], ...] = (
        ("local", lambda: open_local(info, device, local_slabs)),
        ("cuda_ipc", lambda: open_cuda_ipc(info, device)),
        ("shm", lambda: open_shm(info, device)),
        ("nixl", lambda: _open_nixl(info, nixl, prepare)),
    )
    reasons = []
    for name, open_path in paths:
        try:
            if name not in allowed:
                raise TransferFailed("not among transfer.transports")
            mapping = open_path()
        except TransferFailed as error:
            reasons.append(f"{name}: {error.message}")
            continue
        tell(info, name, reasons)
        return mapping
    tell(info, NO_TRANSPORT, reasons)
    raise TransferFailed(f"no transport reaches {info.kind} arena {info.id}: " + "; ".join(reasons))


def _open_nixl(info: ArenaInfo, nixl: NixlCopier | None, prepare: PrepareClaim | None) -> Mapping:
    if nixl is None:
        raise TransferFailed("this process has no NIXL agent")
    return nixl.open(info, prepare)
