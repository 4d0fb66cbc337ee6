"""Spans of families that put marks between an image's rows of patches: start, each row and a break, end.

Two kinds of family do so. Where the marks are text, the decoder's own vocabulary embeds them and the encoder makes one
row per patch (Mistral's are like that, without a start mark). Where they are learned, the encoder lays a row on every
position, its marks among them: so it is in TensorRT-LLM's code for DeepSeek, whose tests the lengths are taken from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from triptych.errors import InvalidRecord


class Kind(IntEnum):
    """What stands at a position of the span."""

    START = 0
    PATCH = 1
    BREAK = 2
    END = 3


@dataclass(frozen=True, slots=True)
class SpanIds:
    """Token ids of a span. Those that take a row are never looked at, but must be of the vocabulary."""

    start: int
    patch: int
    row_break: int
    end: int


@dataclass(frozen=True, slots=True)
class GridSpan:
    """rows * (columns + 1) + 2 positions; what `ItemPart` takes."""

    token_ids: tuple[int, ...]
    embed_mask: tuple[bool, ...]
    kinds: tuple[Kind, ...]

    @property
    def rows(self) -> int:
        """Embedding rows laid into it."""
        return sum(self.embed_mask)


def grid_span(rows: int, columns: int, features: int, ids: SpanIds, *, learned: bool) -> GridSpan:
    """The span of an image of rows x columns patches, for which the encoder makes `features`, marks not counted.

    learned: the marks are rows of the encoder's own, on placeholders; otherwise they are text
    Raises InvalidRecord where the grid does not match the features.
    """
    if min(rows, columns) <= 0 or rows * columns != features:
        raise InvalidRecord(f"grid {rows}x{columns} does not match {features} features, expected {rows * columns}")
    kinds = (Kind.START, *(*(Kind.PATCH,) * columns, Kind.BREAK) * rows, Kind.END)
    if learned:
        return GridSpan((ids.patch,) * len(kinds), (True,) * len(kinds), kinds)
    by_kind: Mapping[Kind, int] = {
        Kind.START: ids.start,
        Kind.PATCH: ids.patch,
        Kind.BREAK: ids.row_break,
        Kind.END: ids.end,
    }
    return GridSpan(tuple(by_kind[kind] for kind in kinds), tuple(kind is Kind.PATCH for kind in kinds), kinds)
