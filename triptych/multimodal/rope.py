"""Rope positions (frame, row, column) of any stretch of a sequence, from its layout alone."""

import numpy as np

from triptych.errors import InvalidRecord
from triptych.journey import Int64Array, Layout, RopeRun

_AXES = 3


def rope_positions(layout: Layout, begin: int, end: int) -> Int64Array:
    """Rope positions [3, end - begin] int64 of sequence positions [begin, end).

    Positions from prompt_tokens on are generated text: p gets p + rope_delta on all axes.
    Raises InvalidRecord for a negative or reversed stretch.
    """
    if begin < 0 or end < begin:
        raise InvalidRecord(f"stretch [{begin}, {end}) is negative or reversed")
    split = min(max(layout.num_tokens, begin), end)
    prompt = _prompt_positions(layout.rope, begin, split)
    if split == end:
        return prompt
    generated = np.arange(split, end, dtype=np.int64) + layout.rope_delta
    return np.concatenate([prompt, np.broadcast_to(generated, (_AXES, end - split))], axis=1)


def _prompt_positions(rope: tuple[RopeRun, ...], begin: int, end: int) -> Int64Array:
    """Positions [begin, end) of the prompt, all runs at once: a prompt may have hundreds of them."""
    if begin == end:
        return np.empty((_AXES, 0), dtype=np.int64)
    table = np.array([rope_numbers(run) for run in rope], dtype=np.int64)  # [runs, 7]
    ends = np.cumsum(table[:, 0])
    first = int(np.searchsorted(ends, begin, side="right"))
    last = int(np.searchsorted(ends, end, side="left"))
    position = np.arange(begin, end, dtype=np.int64)
    run = np.searchsorted(ends[first:last], position, side="right") + first
    offset = position - (ends - table[:, 0])[run]
    base, grid_h, grid_w, step_t = table[run, 1:4].T, table[run, 4], table[run, 5], table[run, 6]
    in_frame = offset % np.maximum(grid_h * grid_w, 1)
    columns = np.maximum(grid_w, 1)
    steps = np.stack([offset // np.maximum(grid_h * grid_w, 1) * step_t, in_frame // columns, in_frame % columns])
    return np.where(grid_w > 0, steps, offset) + base


def rope_numbers(run: RopeRun) -> tuple[int, ...]:
    """Length, base (3), grid rows, grid columns, step; the grid's sides are 0 for text."""
    sides = (run.grid.h, run.grid.w) if run.grid is not None else (0, 0)
    return (run.length, *run.base, *sides, run.step_t)
