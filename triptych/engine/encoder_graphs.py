"""The tower's blocks as captured work: one graph for each bucket of tokens and contexts, replayed for every batch.

What happens for a batch: the prelude fills inputs of fixed address, padding is described to the blocks, and a replay
computes rows and puts them into the arena itself; rows of the padding go to a scratch unit there. A batch that fits no
bucket is left to the caller. Buckets are captured once, before the first batch. Used by one thread, on one stream.

On the CPU a recorder keeps the work itself in place of a graph, so that all of this is the same there but the speed.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triptych.engine.capture import Capture, Work, pointers
from triptych.engine.device import ship
from triptych.engine.encoder_buckets import Bucket, Frame, boundaries, choose, frame, pad_contexts, token_steps
from triptych.errors import ConfigError, LayoutMismatch
from triptych.journey import Grid, Int32Array, Int64Array
from triptych.models.base import BatchShape, GraphTower
from triptych.transfer.slab import Slab

log = logging.getLogger(__name__)

SCRATCH_UNITS = 1  # at the end of the slab, where padded rows go


@dataclass(slots=True, eq=False)
class Captured:
    """The work of one bucket, and what it reads.

    indices: [boundaries of each kind, rows] int32: what a batch's padding looks like and where its rows go, in one
             tensor, so that one copy brings them to the device
    """

    frame: Frame
    inputs: dict[str, Tensor]
    indices: Tensor
    addresses: dict[str, int]
    replay: Work


class BlockGraphs:
    """Captured blocks over one arena. After `capture_all`, used by the thread that encodes, in inference mode."""

    def __init__(
        self, tower: GraphTower, arena_rows: Tensor, scratch: range, buckets: Sequence[Bucket], capture: Capture
    ) -> None:
        """arena_rows: [rows, levels * width] the whole slab, scratch included
        scratch:    rows of it that nobody reads
        """
        self.arena_rows = arena_rows
        self.captured: dict[Bucket, Captured] = {}
        self.replays = 0
        self.misses = 0
        self._tower = tower
        self._scratch = np.array(scratch, np.int64)
        self._buckets = tuple(sorted(buckets))
        self._capture = capture

    def gauges(self) -> dict[str, float]:
        return {"encoder_graph_replays_total": self.replays, "encoder_graph_misses_total": self.misses}

    def capture_all(self) -> None:
        """Once, before the first batch; from then on nothing is captured any more."""
        assert not self.captured, f"{len(self.captured)} graphs have been captured already"
        tower, began = self._tower, time.monotonic()
        most = self._frame(self._buckets[-1]).tokens
        shared = {each.name: each.tensor(most, tower.device) for each in tower.static_inputs}
        # The largest first: it sizes the memory that all graphs share.
        for bucket in reversed(self._buckets):
            self.captured[bucket] = self._capture_one(self._frame(bucket), shared)
        log.info("captured the tower for %d batch shapes in %.1f s", len(self.captured), time.monotonic() - began)

    def prepare(self, patches: Tensor, grids: Sequence[Grid], row_numbers: Int64Array) -> Work | None:
        """Runs the prelude; the result replays the blocks, which writes the rows. None, counted, where no bucket fits.

        patches:     [tokens, patch numbers] of all items
        row_numbers: [rows] where in the arena each row goes, item by item
        Nothing of the arena is written before the result is called: on the same stream, before the next `prepare`.
        Raises RuntimeError when a tensor that captured work uses has moved, LayoutMismatch for other rows than the
        tower makes.
        """
        shape = self._tower.shape(grids)
        if len(shape.row_order) != len(row_numbers):
            raise LayoutMismatch(f"the vision tower makes {len(shape.row_order)} rows, expected {len(row_numbers)}")
        need = _need(shape)
        bucket = choose(self.captured, need)
        if bucket is None:
            self._note_miss(need)
            return None
        captured = self.captured[bucket]
        self._check_pointers(captured)
        self._tower.prelude(patches, shape, captured.inputs)
        indices = self._indices(captured.frame, shape.contexts, row_numbers[shape.row_order])
        # From a pinned block of its own: the batch before may still be on its way from its.
        captured.indices.copy_(ship(torch.from_numpy(indices), self._tower.device))
        self.replays += 1
        return captured.replay

    def check_pointers(self) -> None:
        """Raises RuntimeError naming a tensor that is elsewhere than when it was captured."""
        for captured in self.captured.values():
            self._check_pointers(captured)

    @torch.inference_mode()
    def verify(self, grids: Sequence[Grid]) -> float:
        """Replays a batch of noise and computes it in its own shape, unpadded: how far the rows are apart, relative to
        the largest number. Before the first batch: it writes to the arena, and clears it.

        Raises LayoutMismatch for grids that no bucket covers.
        """
        tower, shape = self._tower, self._tower.shape(grids)
        bucket = choose(self.captured, _need(shape))
        if bucket is None:
            raise LayoutMismatch(f"no captured shape covers {_need(shape)}")
        captured, num_rows = self.captured[bucket], len(shape.row_order)
        exact = {}
        for each in tower.static_inputs:
            noise = torch.randn(each.tensor(shape.tokens).shape).to(tower.device, each.dtype)
            exact[each.name] = noise
            captured.inputs[each.name].narrow(each.token_axis, 0, shape.tokens).copy_(noise)
        captured.indices.copy_(torch.from_numpy(self._indices(captured.frame, shape.contexts, np.arange(num_rows))))
        captured.replay()
        bounds = [torch.from_numpy(boundaries(lengths)).to(tower.device) for lengths in shape.contexts]
        expected = tower.blocks(exact, bounds, [int(lengths.max()) for lengths in shape.contexts])
        found = self.arena_rows[:num_rows]
        apart = (found - expected).abs().max() / expected.abs().max()
        self.arena_rows.zero_()
        return float(apart.nan_to_num(nan=math.inf))

    def _frame(self, bucket: Bucket) -> Frame:
        return frame(bucket, self._tower.longest_contexts, self._tower.tokens_per_row)

    def _capture_one(self, fixed: Frame, shared: Mapping[str, Tensor]) -> Captured:
        tower, arena_rows = self._tower, self.arena_rows
        inputs = {each.name: shared[each.name].narrow(each.token_axis, 0, fixed.tokens) for each in tower.static_inputs}
        no_contexts = [np.empty(0, np.int64)] * len(fixed.contexts)
        indices = torch.from_numpy(self._indices(fixed, no_contexts, np.empty(0, np.int64))).to(tower.device)
        *bounds, rows_at = torch.split(indices, [*(count + 1 for count in fixed.contexts), self._num_rows(fixed)])

        def work() -> None:
            rows = self._checked(tower.blocks(inputs, bounds, fixed.longest), fixed)
            arena_rows.index_copy_(0, rows_at.to(torch.int64), rows)

        with torch.inference_mode():
            replay = self._capture.capture(work)
        captured = Captured(fixed, dict(inputs), indices, {}, replay)
        captured.addresses = pointers(self._used_by(captured))
        return captured

    def _checked(self, rows: Tensor, fixed: Frame) -> Tensor:
        wanted = (self._num_rows(fixed), self._tower.levels * self._tower.width)
        if tuple(rows.shape) != wanted or rows.dtype != self._tower.dtype:
            made = f"{tuple(rows.shape)} of {rows.dtype}"
            raise LayoutMismatch(f"the tower's blocks make rows {made}, expected {wanted} of {self._tower.dtype}")
        return rows

    def _num_rows(self, fixed: Frame) -> int:
        return fixed.tokens // self._tower.tokens_per_row

    def _indices(self, fixed: Frame, contexts: Sequence[Int64Array], rows_at: Int64Array) -> Int32Array:
        kinds = zip(contexts, fixed.contexts, fixed.longest, strict=True)
        bounds = [boundaries(pad_contexts(lengths, fixed.tokens, count, longest)) for lengths, count, longest in kinds]
        padding = np.resize(self._scratch, self._num_rows(fixed) - len(rows_at))
        return np.concatenate([*bounds, rows_at, padding]).astype(np.int32)

    def _used_by(self, captured: Captured) -> dict[str, Tensor]:
        return captured.inputs | {"indices": captured.indices, "arena": self.arena_rows}

    def _check_pointers(self, captured: Captured) -> None:
        for name, address in pointers(self._used_by(captured)).items():
            if address != captured.addresses[name]:
                raise RuntimeError(
                    f"{name!r} was reallocated after the tower had been captured: replays read the old one"
                )

    def _note_miss(self, need: Bucket) -> None:
        if not self.misses:
            log.warning(
                "a batch of %d tokens and %s contexts fits no captured shape and runs eagerly; "
                "encoder_graph_misses_total counts more of them",
                *(need.tokens, "+".join(map(str, need.contexts))),
            )
        self.misses += 1


def _need(shape: BatchShape) -> Bucket:
    return Bucket(shape.tokens, tuple(len(lengths) for lengths in shape.contexts))


def buckets_for(tower: GraphTower, max_tokens: int, max_items: int) -> tuple[Bucket, ...]:
    """Buckets for batches of up to so many tokens in up to so many items."""
    steps = token_steps(max_tokens, tower.tokens_per_row)
    return tuple(Bucket(tokens, tower.most_contexts(tokens, max_items)) for tokens in steps)


def arena_rows(slab: Slab, row_numbers: int, dtype: torch.dtype) -> tuple[Tensor, range]:
    """The slab's rows [rows, row numbers], and which of them are scratch.

    Raises ConfigError where rows do not fill units: they would not stand at equal distances.
    """
    row_bytes = row_numbers * dtype.itemsize
    if slab.unit_bytes % row_bytes:
        raise ConfigError(f"arena units have {slab.unit_bytes} bytes, expected a multiple of the {row_bytes} of a row")
    rows = slab.data.view(dtype).view(-1, row_numbers)
    return rows, range(len(rows) - SCRATCH_UNITS * (slab.unit_bytes // row_bytes), len(rows))
