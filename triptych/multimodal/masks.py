"""A layout's positions as masks: which belong to an item, which of those take a row, which are embedded as text."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triptych.errors import InvalidRecord
from triptych.journey import BoolArray, Int64Array, Layout, Run


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """Each [prompt_tokens].

    mm:      positions inside an item's span
    embed:   of those, where an embedding row is laid
    special: the rest of those: separators and the like, embedded as text; None where no item has any
    """

    embed: BoolArray
    mm: BoolArray
    special: BoolArray | None


def masks(layout: Layout) -> Masks:
    """Told by the items' runs and spans; ids are never looked at."""
    embed = _covered(layout.num_tokens, [run for item in layout.items for run in item.runs])
    mm = _covered(layout.num_tokens, [item.span for item in layout.items])
    special = mm & ~embed
    return Masks(embed, mm, special if special.any() else None)


def rows_per_item(found: Masks, span_lengths: Sequence[int]) -> tuple[int, ...]:
    """Embedding rows of each item, the items' spans one behind the other taking all positions of `mm`.

    Raises InvalidRecord, with both numbers, where the spans are not as long together.
    """
    positions = _item_positions(found, span_lengths)
    ends = np.cumsum(span_lengths)[:-1]
    return tuple(int(found.embed[part].sum()) for part in np.split(positions, ends)) if span_lengths else ()


def starts(found: Masks, span_lengths: Sequence[int]) -> tuple[int, ...]:
    """Prompt position of each item's first token. Raises InvalidRecord as `rows_per_item` does."""
    positions = _item_positions(found, span_lengths)
    firsts = itertools.accumulate(span_lengths[:-1], initial=0)
    return tuple(int(positions[first]) for first in firsts) if span_lengths else ()


def special_offsets(found: Masks) -> tuple[int, ...]:
    """Where the specials are among the positions of `mm`, counted without the text between items."""
    if found.special is None:
        return ()
    return tuple(np.flatnonzero(found.special[found.mm]).tolist())


def _item_positions(found: Masks, span_lengths: Sequence[int]) -> Int64Array:
    if min(span_lengths, default=1) <= 0:
        raise InvalidRecord(f"items span {list(span_lengths)} positions, expected at least 1 each")
    positions = np.flatnonzero(found.mm).astype(np.int64, copy=False)
    if len(positions) != sum(span_lengths):
        raise InvalidRecord(f"items span {sum(span_lengths)} positions together, the prompt has {len(positions)}")
    return positions


def _covered(length: int, runs: Sequence[Run]) -> BoolArray:
    mask = np.zeros(length, dtype=np.bool_)
    for run in runs:
        mask[run.start : run.end] = True
    return mask
