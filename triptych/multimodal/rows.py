"""Which embedding rows a stretch of the prompt takes, and where a stretch may end."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from triptych.errors import InvalidRecord
from triptych.journey import Int64Array, Layout, Run


@dataclass(frozen=True, slots=True, eq=False)
class RowPiece:
    """Consecutive rows of one item and the prompt positions they are laid on.

    row_begin, row_end: half-open, counted from the item's first row
    positions:          [row_end - row_begin] int64, ascending, counted from the start of the prompt; read-only
    """

    item_index: int
    row_begin: int
    row_end: int
    positions: Int64Array


class RowMap:
    """Prefix sum over a layout's embed mask, and what follows from it.

    prefix: [prompt_tokens] int64, rows laid on positions up to and including each; read-only

    Positions from prompt_tokens on are generated text: they take no rows and may be cut anywhere, so a request that
    continues behind its prompt asks the same questions. Negative or reversed stretches raise InvalidRecord.
    """

    def __init__(self, layout: Layout) -> None:
        _check_atomic(layout)
        self._num_tokens = layout.num_tokens
        self._items = layout.items
        mask = np.zeros(layout.num_tokens, dtype=np.bool_)
        for item in layout.items:
            for run in item.runs:
                mask[run.start : run.end] = True
        self.prefix: Int64Array = np.cumsum(mask, dtype=np.int64)
        self._row_positions: Int64Array = np.flatnonzero(mask).astype(np.int64, copy=False)
        rows = np.array([item.rows for item in layout.items], dtype=np.int64)
        self._item_row_ends: Int64Array = np.cumsum(rows)  # [items] rows of the prompt up to each item's last
        self._atomic_starts = np.array([run.start for run in layout.atomic], dtype=np.int64)
        self._atomic = layout.atomic
        self.prefix.setflags(write=False)
        self._row_positions.setflags(write=False)

    def rows_before(self, position: int) -> int:
        """Rows laid on positions [0, position)."""
        if position < 0:
            raise InvalidRecord(f"position is {position}, expected >= 0")
        last = min(position, self._num_tokens) - 1
        return int(self.prefix[last]) if last >= 0 else 0

    def rows_in(self, begin: int, end: int) -> int:
        """Rows laid on positions [begin, end)."""
        if end < begin:
            raise InvalidRecord(f"stretch [{begin}, {end}) is reversed")
        return self.rows_before(end) - self.rows_before(begin)

    def pieces(self, begin: int, end: int) -> list[RowPiece]:
        """The rows laid on positions [begin, end), one piece per item touched, in prompt order."""
        if end < begin:
            raise InvalidRecord(f"stretch [{begin}, {end}) is reversed")
        row, last = self.rows_before(begin), self.rows_before(end)
        place = int(np.searchsorted(self._item_row_ends, row, side="right"))
        pieces: list[RowPiece] = []
        while row < last:
            item = self._items[place]
            item_end = int(self._item_row_ends[place])
            first, stop = item_end - item.rows, min(item_end, last)
            pieces.append(RowPiece(item.index, row - first, stop - first, self._row_positions[row:stop]))
            row, place = stop, place + 1
        return pieces

    def ready_prefix(self, ready_items: Collection[int]) -> int:
        """Length of the longest prefix of the prompt that needs no row of an item outside ready_items.

        ready_items: item indices. Text and separators before an item's first row belong to the prefix, unless it
        would then end inside an atomic span: it ends before that span instead.
        """
        for item in self._items:
            if item.index not in ready_items:
                return self.legal_end(item.runs[0].start)
        return self._num_tokens

    def cut(self, begin: int, limit: int) -> int:
        """Where a chunk that starts at begin and should end by limit must end.

        The largest end <= limit that is not inside an atomic span. When an atomic span starts at begin and reaches
        over the limit, its end: the chunk grows rather than cut it, and an answer above the limit tells the caller
        so (take it, or wait for a step with more room). begin itself when limit <= begin.
        A limit that is a ready prefix is never exceeded, because a ready prefix does not end inside an atomic span.
        Raises InvalidRecord when begin is inside an atomic span: no chunk can have ended there.
        """
        if begin < 0 or self.legal_end(begin) != begin:
            raise InvalidRecord(f"a chunk cannot start at {begin}: negative, or inside an atomic span")
        if limit <= begin:
            return begin
        end = self.legal_end(limit)
        return end if end > begin else self._atomic_at(begin).end

    def legal_end(self, position: int) -> int:
        """The largest place <= position where a stretch may end: position itself unless it is inside an atomic span."""
        place = int(np.searchsorted(self._atomic_starts, position, side="left")) - 1
        if place >= 0 and position < self._atomic[place].end:
            return self._atomic[place].start
        return position

    def _atomic_at(self, start: int) -> Run:
        return self._atomic[int(np.searchsorted(self._atomic_starts, start, side="left"))]


def _check_atomic(layout: Layout) -> None:
    end = 0
    for run in layout.atomic:
        if run.start < end or run.end > layout.num_tokens:
            raise InvalidRecord(f"atomic span [{run.start}, {run.end}) overlaps another or leaves the prompt")
        end = run.end
