"""Tile sizes of the Triton kernels, by dtype: reasoned for Hopper, and measured there by bench/attention.py.

What is used for 16 bits is within a tenth of the best candidate on one H200, for any batch and prompt that was tried.

Decode moves bytes: a processor has to have some 30 KB on their way to it at any moment, so tiles of keys and of values
are fetched ahead of the ones that are multiplied, and several programs share a processor. Prompts multiply: 128 queries
are the rows of two warp groups, and their results stay in registers.

Triton's pipeline spends two stages on each level of loads. Over pages there are two, since a block's id is read before
what lies in it: 3 stages keep nothing on its way while a tile is multiplied, 5 keep one tile, 7 two.
"""

from dataclasses import dataclass

import torch

_STAGES_OF_PAGES = 2


@dataclass(frozen=True, slots=True)
class DecodeTuning:
    """tile: keys per pass; stretch: keys of the shortest split; programs: resident per processor"""

    tile: int
    stretch: int
    warps: int
    stages: int
    programs: int


@dataclass(frozen=True, slots=True)
class ChunkTuning:
    """rows: queries per program; tile: keys per pass; stages: where keys follow one another"""

    rows: int
    tile: int
    warps: int
    stages: int

    def stages_over(self, *, pages: bool) -> int:
        """With as many tiles on their way over pages as elsewhere."""
        return self.stages + (_STAGES_OF_PAGES if pages else 0)


# The first of each is what is used. On a Hopper processor (228 KB, 65,536 registers) as many programs fit.
DECODE_CANDIDATES = (
    DecodeTuning(tile=64, stretch=256, warps=4, stages=5, programs=3),
    DecodeTuning(tile=64, stretch=512, warps=4, stages=5, programs=3),
    DecodeTuning(tile=64, stretch=256, warps=4, stages=3, programs=4),
    DecodeTuning(tile=64, stretch=256, warps=4, stages=7, programs=2),
    DecodeTuning(tile=32, stretch=256, warps=4, stages=7, programs=4),
    DecodeTuning(tile=32, stretch=256, warps=2, stages=5, programs=5),
)
CHUNK_CANDIDATES = (
    ChunkTuning(rows=128, tile=64, warps=8, stages=3),
    ChunkTuning(rows=128, tile=128, warps=8, stages=2),
    ChunkTuning(rows=128, tile=64, warps=8, stages=4),
    ChunkTuning(rows=64, tile=64, warps=4, stages=3),
)

_FLOAT32_DECODE = DecodeTuning(tile=32, stretch=256, warps=4, stages=3, programs=2)
_FLOAT32_CHUNKS = ChunkTuning(rows=32, tile=32, warps=4, stages=2)


def decode_tuning(dtype: torch.dtype) -> DecodeTuning:
    """For queries of this dtype."""
    return _FLOAT32_DECODE if dtype == torch.float32 else DECODE_CANDIDATES[0]


def chunk_tuning(dtype: torch.dtype) -> ChunkTuning:
    """For queries of this dtype."""
    return _FLOAT32_CHUNKS if dtype == torch.float32 else CHUNK_CANDIDATES[0]


def precision(dtype: torch.dtype) -> str:
    """Of Triton's matrix products: float32 numbers are multiplied as what they are, not as tf32."""
    return "ieee" if dtype == torch.float32 else "tf32"
