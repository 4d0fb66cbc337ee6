"""Scattered blocks to scattered places in one pass over memory, in Triton. Imported only where Triton is.

With TRITON_INTERPRET=1 set before the import it runs on the CPU, slowly.
"""

# Triton compiles annotations too, and knows none but its own.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl
from torch import Tensor

_TILE = 4096  # int64 numbers, 32 KiB, that one program moves: enough loads in flight to keep the memory busy
_WARPS = 8


def copy_blocks(blocks: Tensor, places: Tensor, sources: Tensor, targets: Tensor) -> None:
    """places[targets[i]] = blocks[sources[i]] for [*, numbers] int64 of one device, queued on the current stream.

    sources, targets: [count] int64 on the device. Numbers per block are a multiple of 16, so that every load is wide.
    """
    numbers = blocks.shape[1]
    tiles = triton.cdiv(numbers, _TILE)
    _copy_blocks[(sources.numel() * tiles,)](
        blocks, places, sources, targets, numbers, tiles, TILE=_TILE, num_warps=_WARPS
    )


@triton.jit(do_not_specialize=["tiles"])  # else blocks of some sizes would be compiled for in a request
def _copy_blocks(blocks, places, sources, targets, numbers, tiles, TILE: tl.constexpr):
    pair = tl.program_id(0) // tiles
    at = (tl.program_id(0) % tiles) * TILE + tl.arange(0, TILE)
    inside = at < numbers
    source = tl.load(sources + pair)
    target = tl.load(targets + pair)
    moved = tl.load(blocks + source * numbers + at, mask=inside)
    tl.store(places + target * numbers + at, moved, mask=inside)
