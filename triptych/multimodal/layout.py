"""A prompt with its items laid in: from parts to `Layout`, and the digest every tier checks.

The router makes parts (text, item, text, ...); `lay_out` places them one behind the other and works out what each
tier needs: token ids, where an item's rows go, rope runs, spans that must not be cut. What is a placeholder is told
by the parts alone; ids are never scanned, so an id that looks like a placeholder inside a text part is text.
"""

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from triptych.errors import InvalidRecord, LayoutMismatch
from triptych.journey import Grid, Int32Array, Item, Layout, Modality, RopeRun, Run

LAYOUT_DOMAIN = b"triptych.layout.v1"
_MAX_TOKEN_ID = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class TextPart:
    """Tokens that are text, whatever their ids look like; may be empty."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ItemPart:
    """One item and the span it takes in the prompt.

    span_token_ids: id of every position of the span; where rows are laid, an id of the vocabulary nobody looks at
    embed_mask:     which positions of the span take a row; the others are embedded as text (separators, say)
    atomic:         no chunk, prefix hit or ready prefix may end inside the span
    rope_grid:      merged grid that the rows' rope positions follow; None where a family counts them like text
    rope_step_t:    rope steps from one frame of the grid to the next
    """

    digest: bytes
    modality: Modality
    width: int
    height: int
    grid: Grid
    encoder_tokens: int
    rows: int
    media: int
    span_token_ids: tuple[int, ...]
    embed_mask: tuple[bool, ...]
    atomic: bool = False
    rope_grid: Grid | None = None
    rope_step_t: int = 1

    def __post_init__(self) -> None:
        if not self.span_token_ids or len(self.embed_mask) != len(self.span_token_ids):
            raise InvalidRecord(
                f"item part spans {len(self.span_token_ids)} tokens with a mask of {len(self.embed_mask)}; "
                "expected the same number, at least one"
            )
        if self.embed_mask.count(True) != self.rows:
            raise InvalidRecord(
                f"item part's mask takes {self.embed_mask.count(True)} rows, the encoder makes {self.rows}"
            )
        if self.rope_grid is not None and self.rope_grid.patches != self.rows:
            raise InvalidRecord(f"item part has {self.rows} rows, its rope grid {self.rope_grid.patches}")


def lay_out(parts: Sequence[TextPart | ItemPart]) -> Layout:
    """The prompt made of these parts, in order.

    Rope rule (transformers' Qwen M-RoPE): text ascends by one on all three axes; a grid is based at the next text
    position; behind it, text goes on max(grid.h, grid.w) further on. Where a span has several runs of rows, its grid
    is split evenly by frames, one piece per run.
    Raises InvalidRecord for ids outside int32 and for a rope grid that does not fit its runs.
    """
    items: list[Item] = []
    rope = _RopeWriter()
    atomic: list[Run] = []
    position = 0
    for part in parts:
        if isinstance(part, TextPart):
            rope.text(len(part.token_ids))
            position += len(part.token_ids)
            continue
        span = Run(position, len(part.span_token_ids))
        runs = _runs_of(part.embed_mask, position)
        items.append(_item(part, len(items), runs, span))
        rope.item(part, runs, span)
        if part.atomic:
            atomic.append(span)
        position = span.end
    token_ids = _token_ids(parts, position)
    fields = (token_ids, tuple(items), tuple(rope.runs()), tuple(atomic))
    return Layout(*fields, digest=layout_digest(*fields))


def layout_digest(
    token_ids: Int32Array, items: Sequence[Item], rope: Sequence[RopeRun], atomic: Sequence[Run]
) -> bytes:
    """32 bytes over every field of a layout; two layouts that differ anywhere differ here.

    Raises InvalidRecord for a number outside int64, which no layout of ours holds.
    """
    numbers: list[int] = [len(token_ids), len(items), len(rope), len(atomic)]
    names: list[bytes] = []
    for item in items:
        numbers += _item_numbers(item)
        names.append(item.digest + item.modality.encode())
    for rope_run in rope:
        grid = rope_run.grid
        sides = (grid.t, grid.h, grid.w) if grid is not None else (0, 0, 0)  # no grid has a side of 0
        numbers += (rope_run.length, *rope_run.base, *sides, rope_run.step_t)
    for run in atomic:
        numbers += (run.start, run.length)
    try:
        packed = struct.pack(f"<{len(numbers)}q", *numbers)
    except struct.error as error:
        raise InvalidRecord(f"layout holds a number that is not an int64: {error}") from error
    hasher = blake3(struct.pack("<Q", len(LAYOUT_DOMAIN)) + LAYOUT_DOMAIN)
    hasher.update(packed)  # its first four numbers tell how everything that follows is divided
    for name in names:
        hasher.update(struct.pack("<Q", len(name)) + name)
    hasher.update(token_ids.astype("<i4", copy=False).tobytes())
    return bytes(hasher.digest())


def verify_layout(layout: Layout) -> None:
    """Raises LayoutMismatch, naming both digests, unless the layout is what its digest says."""
    found = layout_digest(layout.token_ids, layout.items, layout.rope, layout.atomic)
    if found != layout.digest:
        raise LayoutMismatch(
            f"layout of {layout.num_tokens} tokens and {len(layout.items)} items has digest {found.hex()[:8]}, "
            f"it came with {layout.digest.hex()[:8]}"
        )


class _RopeWriter:
    """Collects rope runs; neighbouring text becomes one run."""

    def __init__(self) -> None:
        self._runs: list[RopeRun] = []
        self._text = 0  # text positions not yet written
        self._next = 0  # rope position of the first of them

    def text(self, length: int) -> None:
        self._text += length

    def grid(self, grid: Grid, step_t: int) -> None:
        self._flush()
        base = self._next
        self._runs.append(RopeRun(grid.patches, (base, base, base), grid, step_t))
        self._next += max(grid.h, grid.w)

    def item(self, part: ItemPart, runs: Sequence[Run], span: Run) -> None:
        if part.rope_grid is None:
            self.text(span.length)
            return
        piece = _piece_of(part.rope_grid, runs)
        position = span.start
        for run in runs:
            self.text(run.start - position)
            self.grid(piece, part.rope_step_t)
            position = run.end
        self.text(span.end - position)

    def runs(self) -> Sequence[RopeRun]:
        self._flush()
        return self._runs

    def _flush(self) -> None:
        if self._text:
            self._runs.append(RopeRun(self._text, (self._next, self._next, self._next)))
        self._next += self._text
        self._text = 0


def _piece_of(grid: Grid, runs: Sequence[Run]) -> Grid:
    """The frames of the grid that each run takes."""
    frames, rest = divmod(grid.t, len(runs))
    if rest or any(run.length != frames * grid.h * grid.w for run in runs):
        lengths = [run.length for run in runs]
        raise InvalidRecord(f"rope grid {grid.t}x{grid.h}x{grid.w} does not divide into runs of {lengths} rows")
    return Grid(frames, grid.h, grid.w)


def _runs_of(mask: tuple[bool, ...], offset: int) -> tuple[Run, ...]:
    """Maximal runs of True, moved by offset."""
    if False not in mask:  # as most families' items are
        return (Run(offset, len(mask)),)
    edges = np.flatnonzero(np.diff(np.array(mask, dtype=np.bool_), prepend=False, append=False))
    pairs = edges.reshape(-1, 2).tolist()
    return tuple(Run(offset + start, end - start) for start, end in pairs)


def _item(part: ItemPart, index: int, runs: tuple[Run, ...], span: Run) -> Item:
    return Item(
        index=index,
        digest=part.digest,
        modality=part.modality,
        width=part.width,
        height=part.height,
        grid=part.grid,
        encoder_tokens=part.encoder_tokens,
        rows=part.rows,
        runs=runs,
        span=span,
        media=part.media,
    )


def _item_numbers(item: Item) -> list[int]:
    grid, span = item.grid, item.span
    numbers = [item.index, item.width, item.height, grid.t, grid.h, grid.w, item.encoder_tokens, item.rows]
    numbers += [item.media, span.start, span.length, len(item.runs)]
    for run in item.runs:
        numbers += (run.start, run.length)
    return numbers


def _token_ids(parts: Sequence[TextPart | ItemPart], count: int) -> Int32Array:
    ids = itertools.chain.from_iterable(
        part.token_ids if isinstance(part, TextPart) else part.span_token_ids for part in parts
    )
    try:
        wide = np.fromiter(ids, dtype=np.int64, count=count)
    except OverflowError as error:
        raise InvalidRecord(f"a token id is not an int64: {error}") from error
    if count and not 0 <= int(wide.min()) <= int(wide.max()) <= _MAX_TOKEN_ID:
        raise InvalidRecord(f"token ids run from {wide.min()} to {wide.max()}, expected 0 to {_MAX_TOKEN_ID}")
    narrow = wide.astype(np.int32)
    narrow.setflags(write=False)  # the digest is over these bytes
    return narrow
