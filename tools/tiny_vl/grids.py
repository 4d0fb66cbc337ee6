"""What depends on a picture's grid alone, worked out once per grid: order of patches, windows, positions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.tiny_vl.scenes import Handed
from triptych.journey import Grid
from triptych.models.qwen2_5_vl.patches import order_patches

PATCH, MERGE, BLOCKS_PER_WINDOW = 14, 2, 4  # pixels, patches and blocks a side
CHANNELS = 3

Int32Array = NDArray[np.int32]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class GridTables:
    """A still picture's patches in window order: windows in reading order, in each of them 2x2 blocks likewise.

    lines, columns: of blocks; a block becomes a row of the language model
    patch_at:       [patches, 2] line and column in the grid of patches
    block_at:       [blocks] place in reading order of the block that stands here
    window_lengths: patches in each window
    """

    lines: int
    columns: int
    patch_at: Int32Array
    block_at: Int32Array
    window_lengths: tuple[int, ...]

    @property
    def num_patches(self) -> int:
        return len(self.patch_at)

    @property
    def whole(self) -> Handed:
        return Handed(tuple(range(self.lines)), tuple(range(self.columns)))

    def cut(self, pixels: Bytes, out: Bytes) -> None:
        """Writes the patches of [height, width, 3] pixels to out: [patches, 588] channel, y, x; contiguous."""
        blocks = pixels.reshape(self.lines, MERGE, PATCH, self.columns, MERGE, PATCH, CHANNELS)
        ordered = blocks.transpose(0, 3, 1, 4, 6, 2, 5)
        written = 0
        # Window by window rather than all and then picked: a large picture's second copy costs more than the first.
        for line in range(0, self.lines, BLOCKS_PER_WINDOW):
            for column in range(0, self.columns, BLOCKS_PER_WINDOW):
                window = ordered[line : line + BLOCKS_PER_WINDOW, column : column + BLOCKS_PER_WINDOW]
                length = window.shape[0] * window.shape[1] * MERGE**2
                out[written : written + length].reshape(window.shape)[:] = window
                written += length

    def slots(self, handed: Handed) -> Int32Array:
        """[blocks] place of each row among those handed over, in their reading order; −1: not handed over."""
        line, column = np.divmod(self.block_at, self.columns)
        new_line, new_column = _places(handed.lines, self.lines)[line], _places(handed.columns, self.columns)[column]
        place = new_line * len(handed.columns) + new_column
        return np.where((new_line >= 0) & (new_column >= 0), place, -1).astype(np.int32)


class Grids:
    """Tables by grid, kept once made."""

    def __init__(self) -> None:
        self._tables: dict[tuple[int, int], GridTables] = {}
        self._row_positions: dict[tuple[int, int], Int32Array] = {}

    def tables(self, width: int, height: int) -> GridTables:
        """Of a picture of so many pixels, both multiples of 28."""
        return self.tables_of(height // (PATCH * MERGE), width // (PATCH * MERGE))

    def tables_of(self, lines: int, columns: int) -> GridTables:
        """Of so many lines and columns of merged cells."""
        if (lines, columns) not in self._tables:
            self._tables[lines, columns] = _make_tables(lines, columns)
        return self._tables[lines, columns]

    def row_positions(self, lines: int, columns: int) -> Int32Array:
        """[3, lines * columns] M-RoPE time, line and column of rows in reading order, relative to the first one's."""
        if (lines, columns) not in self._row_positions:
            line, column = np.indices((lines, columns)).reshape(2, -1)
            self._row_positions[lines, columns] = np.stack([np.zeros_like(line), line, column]).astype(np.int32)
        return self._row_positions[lines, columns]


def retiled(pixels: Bytes, lines: int, columns: int) -> Bytes:
    """The merged cells of [height, width, 3] pixels in their reading order, on other sides: what a wrong grid shows.

    Raises ValueError if there are not as many cells.
    """
    cell = PATCH * MERGE
    height, width = pixels.shape[0] // cell, pixels.shape[1] // cell
    if lines * columns != height * width:
        raise ValueError(f"{lines} x {columns} cells, expected as many as {height} x {width}")
    cells = (
        pixels.reshape(height, cell, width, cell, CHANNELS).swapaxes(1, 2).reshape(lines, columns, cell, cell, CHANNELS)
    )
    return np.ascontiguousarray(cells.swapaxes(1, 2).reshape(lines * cell, columns * cell, CHANNELS))


def _places(picked: tuple[int, ...], count: int) -> Int32Array:
    """[count] where among the picked each one is; −1: not picked."""
    places = np.full(count, -1, np.int32)
    places[list(picked)] = np.arange(len(picked), dtype=np.int32)
    return places


def _make_tables(lines: int, columns: int) -> GridTables:
    order = order_patches([Grid(1, lines * MERGE, columns * MERGE)], MERGE, BLOCKS_PER_WINDOW)
    blocks = order.positions.reshape(-1, MERGE**2, 2)[order.window_index]
    return GridTables(
        lines=lines,
        columns=columns,
        patch_at=blocks.reshape(-1, 2).astype(np.int32),
        block_at=order.window_index.astype(np.int32),
        window_lengths=tuple(order.window_lengths.tolist()),
    )
