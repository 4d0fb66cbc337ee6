"""Slabs of neighbours on a GPU and a reader of them: what the tests of hand-offs share."""

import torch

from tests.transfer.neighbours import HERE
from triptych.config import TransferSettings
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.reader import Reader
from triptych.transfer.slab import Slab

GPU = torch.device("cuda", 0)
UNIT_BYTES = 64 * 1024
NUM_UNITS = 256
NUMBERS = UNIT_BYTES // 8
SETTINGS = TransferSettings(copy_timeout_seconds=20.0)


def reader_of(*arenas: ArenaInfo, slabs: tuple[Slab, ...] = ()) -> Reader:
    """On the first GPU. Its own slabs are `slabs`, every neighbour's are `arenas`."""
    own = {slab.describe().id: slab for slab in slabs}
    return Reader(lambda endpoint: arenas, HERE, own, torch.device("cuda"), SETTINGS)


def rows(units: int) -> torch.Tensor:
    """[units, numbers of a unit] int64, zero"""
    return _written(torch.zeros(units, NUMBERS, dtype=torch.int64, device=GPU))


def blocks(num_blocks: int = NUM_UNITS) -> torch.Tensor:
    """[num_blocks, bytes of a unit] uint8, zero"""
    return _written(torch.zeros(num_blocks, UNIT_BYTES, dtype=torch.uint8, device=GPU))


def _written(memory: torch.Tensor) -> torch.Tensor:
    """Zeros that were queued on this thread's stream would else come behind what a reader's own stream brings."""
    torch.cuda.current_stream(GPU).synchronize()
    return memory
