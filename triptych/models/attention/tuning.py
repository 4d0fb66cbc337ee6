"""Tile sizes of the Triton kernels, by head size and dtype: reasoned for Hopper, to be settled by bench/attention.py.

Decode moves bytes: a processor has to have some 30 KB on their way to it at any moment, so a tile of keys and one of
values are prefetched while the last ones are multiplied, and several programs share a processor. Prompts multiply:
128 queries are the rows of two warp groups, and their results stay in registers.
"""

from dataclasses import dataclass

import torch


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
    """rows: queries per program; tile: keys per pass"""

    rows: int
    tile: int
    warps: int
    stages: int


DECODE_CANDIDATES = (
    DecodeTuning(tile=64, stretch=256, warps=4, stages=3, programs=2),
    DecodeTuning(tile=64, stretch=256, warps=4, stages=4, programs=2),
    DecodeTuning(tile=64, stretch=512, warps=4, stages=3, programs=2),
    DecodeTuning(tile=32, stretch=256, warps=2, stages=4, programs=4),
    DecodeTuning(tile=32, stretch=256, warps=4, stages=4, programs=4),
    DecodeTuning(tile=128, stretch=256, warps=8, stages=3, programs=1),
)
CHUNK_CANDIDATES = (
    ChunkTuning(rows=128, tile=64, warps=8, stages=3),
    ChunkTuning(rows=128, tile=64, warps=4, stages=3),
    ChunkTuning(rows=128, tile=128, warps=8, stages=2),
    ChunkTuning(rows=128, tile=64, warps=8, stages=2),
    ChunkTuning(rows=64, tile=64, warps=4, stages=3),
)

_FLOAT32_DECODE = DecodeTuning(tile=32, stretch=256, warps=4, stages=2, programs=2)
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
