"""How Qwen2.5-VL's tower orders and groups patches, worked out from grids on the host. No torch.

Patches arrive merge block by merge block (2x2 patches that become one row), blocks in reading order. Windowed layers
attend inside squares of window_size pixels, full layers inside frames; blocks are reordered window by window first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triptych.journey import Grid, Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class PatchOrder:
    """Of all items of a batch, one behind the other.

    positions:      [patches, 2] row and column in its grid, in order of arrival
    window_index:   [blocks] which block stands where, window by window
    window_lengths: [windows] patches
    frame_lengths:  [frames] patches
    """

    positions: Int64Array
    window_index: Int64Array
    window_lengths: Int64Array
    frame_lengths: Int64Array


def order_patches(grids: Sequence[Grid], merge_size: int, blocks_per_window: int) -> PatchOrder:
    """merge_size: patches per side of a block; blocks_per_window: blocks per side of a window"""
    positions, index, lengths = [], [], []
    first_block = 0
    for grid in grids:
        positions.append(np.tile(_positions(grid, merge_size), (grid.t, 1)))
        blocks, windows = _windows(grid.h // merge_size, grid.w // merge_size, blocks_per_window)
        for _ in range(grid.t):
            index.append(blocks + first_block)
            lengths.append(windows * merge_size**2)
            first_block += len(blocks)
    frames = [np.full(grid.t, grid.h * grid.w) for grid in grids]
    return PatchOrder(np.concatenate(positions), np.concatenate(index), np.concatenate(lengths), np.concatenate(frames))


def _positions(grid: Grid, merge_size: int) -> Int64Array:
    """[patches of a frame, 2] row and column, block by block."""
    rows, columns = np.indices((grid.h, grid.w))
    blocks = (grid.h // merge_size, merge_size, grid.w // merge_size, merge_size)
    flat = [each.reshape(blocks).transpose(0, 2, 1, 3).reshape(-1) for each in (rows, columns)]
    return np.stack(flat, axis=1).astype(np.int64)


def _windows(rows: int, columns: int, side: int) -> tuple[Int64Array, Int64Array]:
    """A frame's blocks window by window, and the blocks in each window; those at the far edges are smaller."""
    row, column = np.indices((rows, columns)).reshape(2, -1)
    window = (row // side) * -(-columns // side) + column // side
    return np.argsort(window, kind="stable").astype(np.int64), np.bincount(window).astype(np.int64)
