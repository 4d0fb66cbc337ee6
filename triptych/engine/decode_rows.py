"""What a step needs to know of the running branches: one row each, kept from step to step.

Most branches that run in a step also ran in the one before: only what has changed is written anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triptych.engine.penalties import Draw
from triptych.engine.sequence import DecodeSequence
from triptych.errors import InvariantViolation
from triptych.journey import Int32Array, Int64Array

_FIRST_ROWS, _FIRST_BLOCKS = 64, 64


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The branches of one step, in its order; n of them.

    token_ids: [n] int64  each one's last token, where the host knows it
    sources:   [n] int64  where it is among the ids that the step before has made, where the host does not; else -1
    positions: [n] int64  tokens of KV before it
    ropes:     [n] int64  its rope position, the same on all three axes
    slots:     [n] int64  block_id * block_size + offset, where its K and V go
    width:     most blocks that any of them uses
    draws:     of the tokens that follow
    histories: [n]  of each one's KV; see PagedInputs
    """

    token_ids: Int64Array
    sources: Int64Array
    positions: Int64Array
    ropes: Int64Array
    slots: Int64Array
    width: int
    draws: Sequence[Draw]
    histories: Sequence[int]

    @property
    def count(self) -> int:
        return len(self.token_ids)

    @property
    def has_pending(self) -> bool:
        """Whether a token is known to the device alone."""
        return self.count > 0 and int(self.sources.max()) >= 0


class DecodeRows:
    """Used by one thread. Every branch with a token in flight must have been in the step before."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._branches: list[DecodeSequence] = []
        self._draws: list[Draw] = []
        self._blocks: list[Int64Array] = []  # of each row, as they are in the table
        self._table: Int32Array = np.zeros((_FIRST_ROWS, _FIRST_BLOCKS), dtype=np.int32)
        self._offsets: Int64Array = np.zeros((2, _FIRST_ROWS), dtype=np.int64)  # of position and rope, from its tokens

    def update(self, branches: Sequence[DecodeSequence]) -> Rows:
        """Of the step that is launched next."""
        branches = list(branches)
        count, known = len(branches), len(self._branches)
        sources = self._sources(branches)
        for row, branch in enumerate(branches):
            if row >= known or self._branches[row] is not branch:
                self._enter(row, branch)
            elif self._blocks[row] is not branch.blocks:
                self._fill(row, branch.blocks)
        self._leave(count)
        made = np.array([len(branch.tokens) + branch.num_inflight for branch in branches], dtype=np.int64)
        positions, ropes = self._offsets[:, :count] + made
        places = positions // self._block_size
        blocks = self._table[np.arange(count), places].astype(np.int64)
        return Rows(
            token_ids=np.array([branch.tokens[-1] for branch in branches], dtype=np.int64),
            sources=sources,
            positions=positions,
            ropes=ropes,
            slots=blocks * self._block_size + positions % self._block_size,
            width=int(places.max()) + 1 if count else 0,
            draws=self._draws[:count],
            histories=[branch.history for branch in branches],
        )

    def table(self, rows: int, width: int) -> Int32Array:
        """[rows, width] blocks of each branch and 0 behind them; rows that stand for none are 0. A view: copy it."""
        self._make_room(rows, width)
        return self._table[:rows, :width]

    def _sources(self, branches: list[DecodeSequence]) -> Int64Array:
        if not any(branch.num_inflight for branch in branches):
            return np.full(len(branches), -1, dtype=np.int64)
        if self._branches == branches and all(branch.num_inflight for branch in branches):
            return np.arange(len(branches))
        row_of = {branch: row for row, branch in enumerate(self._branches)}
        sources = [row_of.get(branch, -2) if branch.num_inflight else -1 for branch in branches]
        if -2 in sources:
            raise InvariantViolation("a branch has a token in flight and was not in the step before")
        return np.array(sources, dtype=np.int64)

    def _enter(self, row: int, branch: DecodeSequence) -> None:
        if row == len(self._branches):
            self._branches.append(branch)
            self._draws.append(_draw(branch))
            self._blocks.append(branch.blocks[:0])
        self._branches[row], self._draws[row] = branch, _draw(branch)
        self._fill(row, branch.blocks)
        base = branch.layout.num_tokens - 1
        self._offsets[:, row] = base, base + branch.rope_delta

    def _leave(self, count: int) -> None:
        """Only the first so many rows stand for branches any more."""
        self._table[count : len(self._branches)] = 0
        del self._branches[count:], self._draws[count:], self._blocks[count:]

    def _fill(self, row: int, blocks: Int64Array) -> None:
        self._make_room(row + 1, len(blocks))
        line = self._table[row]
        line[: len(blocks)] = blocks
        line[len(blocks) : len(self._blocks[row])] = 0
        self._blocks[row] = blocks

    def _make_room(self, rows: int, width: int) -> None:
        have_rows, have_width = self._table.shape
        if rows <= have_rows and width <= have_width:
            return
        larger = np.zeros((_enough(rows, have_rows), _enough(width, have_width)), dtype=np.int32)
        larger[:have_rows, :have_width] = self._table
        offsets = np.zeros((2, len(larger)), dtype=np.int64)
        offsets[:, :have_rows] = self._offsets
        self._table, self._offsets = larger, offsets


def _draw(branch: DecodeSequence) -> Draw:
    """Of every token of the branch: it sees those that are added to it."""
    return Draw(branch.sampling, branch.choice, branch.layout.token_ids, branch.tokens)


def _enough(wanted: int, have: int) -> int:
    return have if wanted <= have else max(wanted, 2 * have)
