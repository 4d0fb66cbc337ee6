"""Steps with prompts in them as recorded work: one pair of graphs for each number of tokens, replayed.

A step of a thousand tokens is some four hundred launches, which take the host longer than they take an H200, and much
longer where other threads want the interpreter in between; a replay takes two. The first graph of a pair looks up the
tokens' embeddings, the second computes logits and chooses the largest ones; between the two, rows of images are laid
over placeholders, whose number and place no graph could know. Everything else that the host knows goes, in two copies,
into inputs of fixed address. Tokens beyond the step's own write nothing. Steps that fit no shape run eagerly: for so
many tokens the device takes longer than the host.
"""

import logging
import math
import time
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from triptych.config import LanguageSettings
from triptych.engine.batch import Flat
from triptych.engine.capture import Capture, Work
from triptych.engine.device import Numbers, Stage, places, views
from triptych.engine.fuse import Overlay, fuse
from triptych.engine.recorded import Recorded, Replayed, attempt, check_difference
from triptych.engine.sampler import choose_largest
from triptych.journey import Int64Array
from triptych.models.base import LanguageModel, StepInputs, StepLanguageModel, StepShape

log = logging.getLogger(__name__)

_MOST_TOKENS = 1024  # of a step: an H200 takes some 20 ms for them, a host some 20 to launch what they need
_STRIDE = 128
_FINE_STRIDE = 16  # from the largest chunk on, with which most steps go: each row too many costs as much as another
_SHORTEST = (32, 64)
_MOST_PROMPTS = 32  # of a step, beside those that decode


class StepGraphs:
    """Recorded steps over one KV slab. After `record_all`, used by one thread, in inference mode, on one stream."""

    def __init__(
        self,
        model: StepLanguageModel,
        kv: Tensor,
        last_ids: Tensor,
        block_size: int,
        shapes: Sequence[StepShape],
        longest: int,
        capture: Capture,
    ) -> None:
        """kv: the slab, in the model's own shape. last_ids: [any] int64, left by each step for the next.

        longest: tokens of the longest context
        """
        self.replays = 0
        self._model = model
        self._kv = kv
        self._last_ids = last_ids
        self._block_size = block_size
        self._shapes = sorted(shapes)
        self._capture = capture
        self._recorded: dict[StepShape, tuple[Work, Recorded]] = {}
        self._stage = Stage(kv.device)
        largest = self._shapes[-1]
        most = max(places(self._arrays(shape, _nothing()))[1] for shape in self._shapes)
        self._inputs = torch.zeros(most, dtype=torch.uint8, device=kv.device)
        width = -(-longest // block_size)
        self._tables = torch.zeros(largest.sequences, width, dtype=torch.int32, device=kv.device)
        room = (largest.tokens, model.hidden_size)
        self._embeddings = torch.zeros(room, dtype=model.dtype, device=kv.device)
        self._deepstack = torch.zeros(model.levels - 1, *room, dtype=model.dtype, device=kv.device)

    def record_all(self) -> None:
        """Largest first, so that the shared memory pool is as large as it will be."""
        began = time.monotonic()
        for shape in reversed(self._shapes):
            self._recorded[shape] = self._record(shape)
            log.debug("recorded steps of %d tokens, of %d sequences", shape.tokens, shape.sequences)
        log.info("recorded steps with prompts in %d shapes in %.1f s", len(self._recorded), time.monotonic() - began)

    def shape(self, flat: Flat) -> StepShape | None:
        """The smallest that takes this step."""
        lengths = flat.query_lengths
        tokens, sequences, prompts = sum(lengths), len(lengths), sum(length > 1 for length in lengths)
        if min(lengths) == 0 or sequences > self._shapes[0].sequences or prompts > self._shapes[0].prompts:
            return None
        return next((shape for shape in self._shapes if shape.tokens >= tokens), None)

    @torch.inference_mode()
    def replay(self, shape: StepShape, flat: Flat, sources: Int64Array, overlays: Sequence[Overlay] = ()) -> Replayed:
        """Launch the step; does not wait for the device.

        sources: as of Rows, of the step's first tokens

        Raises RuntimeError when a tensor that recorded work uses has moved, LayoutMismatch for rows of another width.
        """
        recorded = self._recorded[shape][1]
        recorded.check()
        self._prepare(shape, flat, sources, overlays)
        self.replays += 1
        return recorded.replay()

    @torch.inference_mode()
    def verify(self) -> float:
        """How far replayed logits are from those of the same work done now, relative to the largest; over all shapes.

        Before the first step: it writes to the slab, and clears what it has written.
        """
        return max((self._difference(shape) for shape in self._shapes if self._fits_slab(shape)), default=0.0)

    def _fits_slab(self, shape: StepShape) -> bool:
        return _trial_blocks(shape, self._block_size) <= min(len(self._kv) - 1, self._tables.shape[1])

    def _difference(self, shape: StepShape) -> float:
        self._prepare(shape, _trial(shape, self._block_size, self._model.vocab_size), np.zeros(0, dtype=np.int64), ())
        written = self._kv[: 1 + _trial_blocks(shape, self._block_size)].view(torch.uint8)
        expected = self._model.step(self._embeddings[: shape.tokens], self._told(shape), self._kv)[:2].clone()
        written.zero_()
        apart = (self._recorded[shape][1].replay().logits[:2] - expected).abs().max() / expected.abs().max()
        written.zero_()  # whatever numbers they are
        return float(apart.nan_to_num(nan=math.inf))

    def _prepare(self, shape: StepShape, flat: Flat, sources: Int64Array, overlays: Sequence[Overlay]) -> None:
        self._tell(shape, flat, sources)
        self._recorded[shape][0]()
        self._lay(shape, len(flat.token_ids), overlays)

    def _tell(self, shape: StepShape, flat: Flat, sources: Int64Array) -> None:
        self._stage.put(self._arrays(shape, flat, sources), self._inputs)
        # Only as wide as need be: what lies behind is of earlier steps, and nobody reads it.
        (tables,) = self._stage.send([flat.tables.astype(np.int32)])
        self._tables[: tables.shape[0], : tables.shape[1]].copy_(tables)

    def _lay(self, shape: StepShape, tokens: int, overlays: Sequence[Overlay]) -> None:
        """Rows over the step's embeddings, and the deeper levels, 0 where there is no row."""
        _, deeper = fuse(self._embeddings[:tokens], overlays, self._model.levels)
        if len(self._deepstack):
            target = self._deepstack[:, : shape.tokens]
            target.zero_()
            if deeper is not None:
                target[:, :tokens].copy_(deeper)

    def _arrays(self, shape: StepShape, flat: Flat, sources: Int64Array | None = None) -> list[Numbers]:
        """What the device is told, in sizes that do not depend on the step: what `_told` finds again, in its order."""
        count, (tokens, most) = len(flat.token_ids), (shape.tokens, shape.sequences)
        lengths = np.array([flat.query_lengths, flat.kv_lengths], dtype=np.int32)
        sequences = np.zeros((3, most), dtype=np.int32)
        sequences[1:, : lengths.shape[1]] = lengths
        sequences[0, : lengths.shape[1]] = np.cumsum(lengths[0]) - lengths[0]
        token_ids, pending = np.zeros(tokens, dtype=np.int64), np.full(tokens, -1, dtype=np.int64)
        positions, slots = np.zeros((3, tokens), dtype=np.int64), np.full(tokens, -1, dtype=np.int64)
        logits_at = np.zeros(most, dtype=np.int64)
        token_ids[:count], positions[:, :count], slots[:count] = flat.token_ids, flat.positions, flat.slots
        logits_at[: len(flat.logits_at)] = flat.logits_at
        if sources is not None:
            pending[: len(sources)] = sources
        listed = self._model.list_step(sequences[:, : lengths.shape[1]], shape, self._block_size)
        return [token_ids, pending, positions, slots, sequences, logits_at, *listed]

    def _told(self, shape: StepShape) -> StepInputs:
        """The inputs of recorded work: views of memory that stays where it is."""
        found = views(self._inputs, self._arrays(shape, _nothing()))
        _, _, positions, slots, sequences, logits_at, *listed = found
        deepstack = self._deepstack[:, : shape.tokens] if len(self._deepstack) else None
        tables = self._tables[: shape.sequences]
        return StepInputs(positions, slots, sequences, tables, logits_at, listed, deepstack)

    def _record(self, shape: StepShape) -> tuple[Work, Recorded]:
        nothing = self._arrays(shape, _nothing())
        self._stage.put(nothing, self._inputs)
        token_ids, pending = views(self._inputs, nothing)[:2]
        embeddings, inputs = self._embeddings[: shape.tokens], self._told(shape)
        made: list[Replayed] = []

        def front() -> None:
            fed = self._last_ids.index_select(0, pending.clamp_min(0))
            embeddings.copy_(self._model.embed(torch.where(pending >= 0, fed, token_ids)))

        def work() -> None:
            logits = self._model.step(embeddings, inputs, self._kv)
            chosen, report = choose_largest(logits)
            count = min(len(self._last_ids), shape.sequences)
            self._last_ids[:count].copy_(chosen[:count])
            made[:] = [Replayed(logits, report)]

        used = {"KV slab": self._kv, "inputs": self._inputs, "last ids": self._last_ids, "tables": self._tables}
        used |= {"embeddings": self._embeddings, "deeper rows": self._deepstack}
        with torch.inference_mode():
            return self._capture.capture(front), Recorded(self._capture.capture(work), made, used)


def record_steps(
    model: LanguageModel, kv: Tensor, last_ids: Tensor, settings: LanguageSettings, capture: Capture
) -> StepGraphs | None:
    """Steps with prompts in all shapes that the settings allow, tried once. Where that fails None, with a warning.

    None as well of a model that has no such step. Raises ConfigError instead when language.graphs is "on".
    """
    if not hasattr(model, "step"):
        return None
    longest = min(settings.longest(model.max_model_len), len(kv) * settings.block_size)

    def make() -> StepGraphs:
        steps = cast(StepLanguageModel, model)
        graphs = StepGraphs(steps, kv, last_ids, settings.block_size, step_shapes(settings), longest, capture)
        graphs.record_all()
        check_difference(graphs.verify())
        return graphs

    return attempt(make, settings.graphs, "steps with prompts")


def step_shapes(settings: LanguageSettings) -> list[StepShape]:
    """Shapes for steps of as many tokens as settings allow, up to a thousand."""
    chunk = min(settings.mixed_chunk_tokens or settings.prefill_chunk_tokens, _MOST_TOKENS)
    most = min(chunk + settings.max_sequences, _MOST_TOKENS)
    sizes = {*_SHORTEST, *range(_STRIDE, chunk, _STRIDE), *range(chunk, most, _FINE_STRIDE), most}
    prompts = min(settings.max_sequences, _MOST_PROMPTS)
    sequences = settings.max_sequences + prompts
    return [StepShape(size, sequences, prompts) for size in sorted(sizes) if size <= most]


def _nothing() -> Flat:
    """A step without sequences."""
    none = np.zeros(0, dtype=np.int64)
    return Flat(none, none.reshape(3, 0), none, none.reshape(0, 0), none, (), (), ())


def _trial_blocks(shape: StepShape, block_size: int) -> int:
    """Of the prompt."""
    return -(-(shape.tokens - 1) // block_size)


def _trial(shape: StepShape, block_size: int, vocab_size: int) -> Flat:
    """A step of one token in the first block, and of a prompt that takes all others."""
    several = shape.tokens - 1
    numbers = np.arange(shape.tokens, dtype=np.int64)
    blocks = np.arange(_trial_blocks(shape, block_size), dtype=np.int64)
    tables = np.stack([np.zeros_like(blocks), 1 + blocks])
    return Flat(
        token_ids=numbers % vocab_size,
        positions=np.tile(np.maximum(numbers - 1, 0), (3, 1)),
        slots=np.concatenate([numbers[:1], block_size + numbers[:several]]),
        tables=tables,
        logits_at=np.array([0, several], dtype=np.int64),
        query_lengths=(1, several),
        kv_lengths=(1, several),
        histories=(0, 0),
    )
