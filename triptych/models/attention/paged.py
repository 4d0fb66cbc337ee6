"""Attention by our own Triton kernels, which need no compiler on the node but Triton's; prompts may go to torch's.

Steps that are told by tensors can be recorded: whatever is launched depends on their shapes alone.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triptych.journey import Int32Array, Int64Array
from triptych.models.attention.base import AttentionShape
from triptych.models.attention.parts import StepParts, split
from triptych.models.attention.triton_chunks import ChunkRows, attend_pages, attend_rows, list_tiles
from triptych.models.attention.triton_decode import DecodeRows, Stretches, attend_stretches, list_stretches
from triptych.models.attention.tuning import ChunkTuning, DecodeTuning, chunk_tuning, decode_tuning
from triptych.models.attention.varlen import PlacedRun, find_runs, place
from triptych.models.base import DecodeInputs, PagedInputs, StepInputs, StepShape
from triptych.models.shipping import ship

_INTERPRETED_PROCESSORS = 2


class TritonAttention:
    """An Attention. `varlen`: prompts without anything before them are torch's varlen_attn's."""

    recordable = True

    def __init__(
        self,
        shape: AttentionShape,
        device: torch.device,
        *,
        varlen: bool = False,
        decode: DecodeTuning | None = None,
        chunks: ChunkTuning | None = None,
    ) -> None:
        """Without tunings, those of the shape's dtype."""
        self.name = "varlen" if varlen else "triton"
        self.shape = shape
        self.varlen = varlen
        self.decode = decode or decode_tuning(shape.dtype)
        self.chunks = chunks or chunk_tuning(shape.dtype)
        self.processors = _INTERPRETED_PROCESSORS
        if device.type == "cuda":
            self.processors = torch.cuda.get_device_properties(device).multi_processor_count

    def step(self, inputs: PagedInputs, kv_slab: Tensor) -> "TritonStep":
        """As Attention.step."""
        parts = split(inputs)
        single = parts.single
        runs = find_runs(parts) if self.varlen else ()
        begun = parts.fresh[:0] if self.varlen else parts.fresh
        first, row, kv_length, continued, fresh, bounds = ship(
            kv_slab.device,
            parts.first[single],
            single,
            parts.kv_length[single],
            list_tiles(_chunks(parts, parts.continued, parts.continued), self.chunks),
            list_tiles(_chunks(parts, begun, parts.first[begun]), self.chunks),
            np.concatenate([np.empty(0, np.int64), *(run.bounds for run in runs)]),
        )
        tables = inputs.block_tables.to(torch.int32)
        stretches = None
        if len(single):
            rows = DecodeRows(kv_length.to(torch.int32), tables, first, row)
            stretches = list_stretches(rows, self.shape, self.decode)
        return TritonStep(self, kv_slab, tables, stretches, continued, fresh, place(runs, bounds))

    def decode_step(self, inputs: DecodeInputs, kv_slab: Tensor) -> "TritonStep":
        """As Attention.decode_step; nothing waits for the device."""
        tables = inputs.block_tables.to(torch.int32)
        stretches = list_stretches(DecodeRows(inputs.kv_lengths.to(torch.int32), tables), self.shape, self.decode)
        nothing = inputs.slots[:0]
        return TritonStep(self, kv_slab, tables, stretches, nothing, nothing, ())

    def list_step(self, sequences: Int32Array, shape: StepShape) -> list[NDArray[np.generic]]:
        """As Attention.list_step: [3, n] int64  tokens after the step, token and row of each sequence with one new
        token; and [tiles, 4] int64 of the others, as of `list_tiles`. Places that are not needed are zeros.
        """
        first, length, kv_length = sequences.astype(np.int64)
        one, several = np.flatnonzero(length == 1), np.flatnonzero(length > 1)
        singles = np.zeros((3, shape.sequences), dtype=np.int64)
        singles[1] = shape.tokens  # whose result nobody reads: rows that stand for no sequence write zeros there
        singles[:, : len(one)] = kv_length[one], first[one], one
        listed = list_tiles(ChunkRows(first[several], length[several], kv_length[several], several), self.chunks)
        tiles = np.zeros((-(-shape.tokens // self.chunks.rows) + shape.prompts, listed.shape[1]), dtype=np.int64)
        tiles[: len(listed)] = listed
        return [singles, tiles]

    def told_step(self, inputs: StepInputs, kv_slab: Tensor) -> "TritonStep":
        """As Attention.told_step; nothing waits for the device. Prompts that begin are read from the slab as well."""
        (kv_lengths, tokens, rows), tiles = inputs.listed
        listed = DecodeRows(kv_lengths.to(torch.int32), inputs.block_tables, tokens, rows)
        stretches = list_stretches(listed, self.shape, self.decode)
        return TritonStep(self, kv_slab, inputs.block_tables, stretches, tiles, tiles[:0], (), spare=1)


class TritonStep:
    """An AttentionStep: what is listed once, and worked off in each layer."""

    def __init__(
        self,
        owner: TritonAttention,
        kv_slab: Tensor,
        tables: Tensor,
        stretches: Stretches | None,
        continued: Tensor,
        fresh: Tensor,
        runs: Sequence[PlacedRun],
        spare: int = 0,
    ) -> None:
        """continued, fresh: [tiles, 4] as of `list_tiles`, may be empty; runs: of fresh ones, for torch

        spare: rows behind the step's tokens that kernels may write to
        """
        self._owner = owner
        self._slab = kv_slab
        self._tables = tables
        self._stretches = stretches
        self._continued = continued
        self._fresh = fresh
        self._runs = runs
        self._spare = spare

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """As AttentionStep.attend."""
        owner, shape = self._owner, self._owner.shape
        if len(self._runs) == 1 and self._runs[0].length == len(query):
            return self._runs[0].attend(query, key, value, shape.scale)
        room = torch.empty(len(query) + self._spare, *query.shape[1:], dtype=query.dtype, device=query.device)
        output = room[: len(query)]
        if self._stretches is not None:
            attend_stretches(self._stretches, query, self._slab, layer, room, shape, owner.decode, owner.processors)
        if len(self._continued):
            attend_pages(self._continued, self._tables, query, self._slab, layer, output, shape, owner.chunks)
        if len(self._fresh):
            attend_rows(self._fresh, query, key, value, output, shape, owner.chunks)
        for run in self._runs:
            output[run.tokens] = run.attend(query, key, value, shape.scale)
        return output


def _chunks(parts: StepParts, rows: Int64Array, origin: Int64Array) -> ChunkRows:
    return ChunkRows(parts.first[rows], parts.length[rows], parts.kv_length[rows], origin)
