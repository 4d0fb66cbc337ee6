"""Decoding steps as recorded work: one graph for each number of branches and width of block tables, replayed.

What happens in a step: everything the host knows goes, in one copy, into inputs of fixed address; the replay takes each
branch's token from there or from the ids that the step before has left on the device, computes the logits, and chooses
the largest ones. Rows beyond the branches write nothing. Steps that fit no bucket run eagerly; those that prefill, too,
are recorded by step_graphs.py.

On the CPU a recorder keeps the work itself in place of a graph, so that all of this is the same there but the speed.
"""

import logging
import math
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from triptych.config import LanguageSettings
from triptych.engine.capture import Capture, CudaCapture, Recorder
from triptych.engine.decode_rows import DecodeRows, Rows
from triptych.engine.device import Numbers, Stage, places, views
from triptych.engine.recorded import Recorded, Replayed, attempt, check_difference
from triptych.engine.sampler import choose_largest
from triptych.errors import ConfigError
from triptych.models.base import DecodeInputs, GraphLanguageModel, LanguageModel
from triptych.transfer.cuda_events import HIGHEST_PRIORITY

log = logging.getLogger(__name__)

# Tokens that a block table of each width takes; the widest takes the longest context. A wider one costs a longer copy,
# and more kernels' blocks that find nothing to do.
_TABLE_TOKENS = (4096, 32_768)


class Bucket(NamedTuple):
    """A shape that steps are recorded in."""

    rows: int
    width: int  # blocks of each


class DecodeGraphs:
    """Recorded steps over one KV slab. After `record_all`, used by one thread, in inference mode, on one stream."""

    def __init__(
        self,
        model: GraphLanguageModel,
        kv: Tensor,
        last_ids: Tensor,
        block_size: int,
        buckets: Iterable[Bucket],
        capture: Capture,
    ) -> None:
        """kv: the slab, in the model's own shape. last_ids: [any] int64, left by each step for the next."""
        self.replays = 0
        self._model = model
        self._kv = kv
        self._last_ids = last_ids
        self._block_size = block_size
        self._buckets = sorted(buckets)
        self._capture = capture
        self._recorded: dict[Bucket, Recorded] = {}
        self._stage = Stage(kv.device)
        most = max(places(_nothing(bucket))[1] for bucket in self._buckets)
        self._inputs = torch.zeros(most, dtype=torch.uint8, device=kv.device)

    def record_all(self) -> None:
        """Largest first, so that the shared memory pool is as large as it will be."""
        began = time.monotonic()
        for number, bucket in enumerate(sorted(self._buckets, key=math.prod, reverse=True), start=1):
            self._recorded[bucket] = self._record(bucket)
            log.debug("recorded decoding of %d branches, %d blocks each", *bucket)
            if number % 8 == 0:
                log.info("recorded %d of %d shapes of decoding steps", number, len(self._buckets))
        log.info("recorded decoding in %d shapes in %.1f s", len(self._recorded), time.monotonic() - began)

    def bucket(self, rows: Rows) -> Bucket | None:
        """The smallest that takes these branches."""
        fitting = (bucket for bucket in self._buckets if bucket.rows >= rows.count and bucket.width >= rows.width)
        return next(fitting, None)

    def replay(self, bucket: Bucket, rows: Rows, of: DecodeRows) -> Replayed:
        """Launch the step of these branches; does not wait for the device.

        Raises RuntimeError when a tensor that recorded work uses has moved.
        """
        recorded = self._recorded[bucket]
        recorded.check()
        self._stage.put(_arrays(bucket, rows, of), self._inputs)
        self.replays += 1
        return recorded.replay()

    @torch.inference_mode()
    def verify(self) -> float:
        """How far replayed logits are from eager ones, relative to the largest number; over all buckets that fit.

        Before the first step: it writes to the slab, and clears what it has written.
        """
        return max((self._difference(bucket) for bucket in self._buckets if bucket.rows <= len(self._kv)), default=0.0)

    def _difference(self, bucket: Bucket) -> float:
        arrays, numbers = _nothing(bucket), np.arange(bucket.rows)
        token_ids, slots, kv_lengths, tables = arrays[0], *arrays[3:]
        token_ids[:] = numbers % self._model.vocab_size
        slots[:] = numbers * self._block_size
        kv_lengths[:] = 1
        tables[:, 0] = numbers
        self._stage.put(arrays, self._inputs)
        ids, _, *rest = views(self._inputs, arrays)
        expected = self._model.decode(DecodeInputs(ids, *rest), self._kv).clone()
        self._kv[: bucket.rows].view(torch.uint8).zero_()
        apart = (self._recorded[bucket].replay().logits - expected).abs().max() / expected.abs().max()
        self._kv[: bucket.rows].view(torch.uint8).zero_()  # whatever numbers they are
        return float(apart.nan_to_num(nan=math.inf))

    def _record(self, bucket: Bucket) -> Recorded:
        nothing = _nothing(bucket)
        self._stage.put(nothing, self._inputs)
        token_ids, sources, *rest = views(self._inputs, nothing)
        made: list[Replayed] = []

        def work() -> None:
            fed = self._last_ids.index_select(0, sources.clamp_min(0))
            ids = torch.where(sources >= 0, fed, token_ids)
            logits = self._model.decode(DecodeInputs(ids, *rest), self._kv)
            chosen, report = choose_largest(logits)
            self._last_ids[: bucket.rows].copy_(chosen)
            made[:] = [Replayed(logits, report)]

        with torch.inference_mode():
            replay = self._capture.capture(work)
        return Recorded(replay, made, {"KV slab": self._kv, "inputs": self._inputs, "last ids": self._last_ids})


def capture_for(graphs: str, device: torch.device) -> Capture | None:
    """What decoding is recorded with; None where it is not to be, as the setting language.graphs has it."""
    if graphs == "off" or (graphs == "auto" and device.type != "cuda"):
        return None
    return CudaCapture(device, HIGHEST_PRIORITY) if device.type == "cuda" else Recorder()


def record(
    model: LanguageModel, kv: Tensor, last_ids: Tensor, settings: LanguageSettings, capture: Capture
) -> DecodeGraphs | None:
    """Decoding in all shapes that the settings allow, tried once. Where it cannot be recorded None, with a warning.

    Raises ConfigError instead when language.graphs is not "auto" but "on".
    """

    def make() -> DecodeGraphs:
        if not hasattr(model, "decode") or (kv.device.type == "cuda" and not getattr(model, "recordable", True)):
            raise ConfigError("this decoder, or its attention, has no step that can be")
        longest = min(settings.longest(model.max_model_len), len(kv) * settings.block_size)
        shapes = buckets(settings, longest)
        graphs = DecodeGraphs(cast(GraphLanguageModel, model), kv, last_ids, settings.block_size, shapes, capture)
        graphs.record_all()
        check_difference(graphs.verify())
        return graphs

    return attempt(make, settings.graphs, "decoding steps")


def buckets(settings: LanguageSettings, longest: int) -> list[Bucket]:
    """Shapes for steps of up to max_sequences branches, of up to so many tokens each."""
    rows = [1 << power for power in range(settings.max_sequences.bit_length()) if 1 << power < settings.max_sequences]
    tokens = [each for each in _TABLE_TOKENS if each < longest]
    widths = [-(-each // settings.block_size) for each in (*tokens, longest)]
    return [Bucket(row, width) for row in (*rows, settings.max_sequences) for width in widths]


def _nothing(bucket: Bucket) -> list[Numbers]:
    """What the device is told of a step without branches: token ids, sources, positions, slots, lengths, tables."""
    rows, width = bucket
    return [
        np.zeros(rows, dtype=np.int64),
        np.full(rows, -1, dtype=np.int64),
        np.zeros((3, rows), dtype=np.int64),
        np.full(rows, -1, dtype=np.int64),
        np.zeros(rows, dtype=np.int32),
        np.zeros((rows, width), dtype=np.int32),
    ]


def _arrays(bucket: Bucket, rows: Rows, of: DecodeRows) -> Sequence[Numbers]:
    count = rows.count
    arrays = _nothing(Bucket(bucket.rows, 0))
    for array, values in zip(arrays, (rows.token_ids, rows.sources, rows.ropes, rows.slots), strict=False):
        array[..., :count] = values
    arrays[4][:count] = rows.positions + 1
    arrays[5] = of.table(bucket.rows, bucket.width)
    return arrays
