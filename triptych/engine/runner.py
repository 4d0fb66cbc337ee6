"""The only part of the language engine that touches the model and the KV slab."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from triptych.config import CPU_KV_BYTES, LanguageSettings
from triptych.engine.batch import Flat, Stretch, flatten
from triptych.engine.cpu_threads import CpuThreads
from triptych.engine.decode_graphs import DecodeGraphs, capture_for, record
from triptych.engine.decode_rows import DecodeRows, Rows
from triptych.engine.device import Numbers, Stage
from triptych.engine.fuse import Overlay, fuse
from triptych.engine.launched import BlocksInUse, Drawing
from triptych.engine.plan import Swap
from triptych.engine.recorded import Replayed
from triptych.engine.sampler import Draw, choose, wishes
from triptych.engine.sequence import DecodeSequence
from triptych.engine.step_graphs import StepGraphs, record_steps
from triptych.engine.swap import SwapSpace
from triptych.errors import ConfigError
from triptych.journey import BlockRef, Int64Array
from triptych.models.base import LanguageModel
from triptych.transfer.cuda_events import (
    HIGHEST_PRIORITY,
    has_completed,
    new_event,
    new_sleeping_event,
    new_stream,
)
from triptych.transfer.slab import Slab


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One forward pass.

    branches:  one token of each
    stretches: of prompts, behind them
    overlays:  of the stretches' rows; positions count from the step's first token
    first:     draws from each stretch's logits, where it wants them
    """

    branches: Sequence[DecodeSequence] = ()
    stretches: Sequence[Stretch] = ()
    overlays: Sequence[Overlay] = ()
    first: Sequence[Sequence[Draw]] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Logits:
    """Of a forward pass that is launched, and all that is needed to choose tokens from them.

    logits: [rows, vocab] float32, of each branch, then of each stretch that wants them; a replay has more behind them
    report: of the largest logits, where that is all that is wanted and the replay has chosen them
    last_ids: those that the step before has chosen
    blocks: that the pass writes into
    """

    logits: Tensor
    report: Tensor | None
    rows: Rows
    draws: Sequence[Draw]
    wanted: dict[str, Tensor]
    last_ids: Tensor
    blocks: Int64Array


class Runner:
    """Runs steps on one device, in order, on one stream. All methods belong to the thread inside `stream()`.

    Steps may be launched before earlier ones have ended: the ids that one has chosen stay on the device, where the
    next one takes them from.
    """

    def __init__(self, model: LanguageModel, slab: Slab | None, settings: LanguageSettings) -> None:
        """slab: with units of one block each; without one the runner allocates kv_bytes of its own.

        Raises ConfigError when that is less than one block, or the units are of another size.
        """
        block_size = settings.block_size
        block_bytes = model.kv.block_bytes(block_size)
        kv_bytes = (settings.kv_bytes or CPU_KV_BYTES) // block_bytes * block_bytes
        data = slab.data if slab is not None else torch.zeros(kv_bytes, dtype=torch.uint8, device=model.device)
        if data.numel() < block_bytes:
            raise ConfigError(f"language.kv_bytes gives {data.numel()} bytes of KV, one block takes {block_bytes}")
        if slab is not None and slab.words.numel() * block_bytes != data.numel():
            raise ConfigError(
                f"the KV slab has {slab.words.numel()} units, blocks of {block_bytes} bytes do not fill them"
            )
        self.model = model
        self.block_size = block_size
        self.num_blocks = data.numel() // block_bytes
        self.graphs: DecodeGraphs | None = None
        self.step_graphs: StepGraphs | None = None
        self._settings = settings
        self._slab = slab
        self._blocks = data[: self.num_blocks * block_bytes].view(self.num_blocks, block_bytes)
        self._kv = self._blocks.view(-1).view(model.kv.dtype).view(model.kv.slab_shape(self.num_blocks, block_size))
        self._swap_space: SwapSpace | None = None
        self._rows = DecodeRows(block_size)
        self._stage = Stage(model.device)
        with torch.inference_mode():
            self._last_ids = torch.zeros(settings.max_sequences, dtype=torch.int64, device=model.device)
        self._is_cuda = model.device.type == "cuda"
        self._threads = CpuThreads(model.device)
        self._in_use: deque[BlocksInUse] = deque()
        # Stamps overtake the steps that are launched: who waits for a block's new generation waits for them alone.
        self._stamps = new_stream(model.device, HIGHEST_PRIORITY) if self._is_cuda else None
        self._stamped = new_event() if self._is_cuda else None  # waiters do not sleep: it is a matter of microseconds

    def make_room(self, num_slots: int) -> None:
        """Host memory for the KV of so many blocks; it is made when it is first needed."""
        block_bytes = self._blocks.shape[1]
        self._swap_space = SwapSpace(block_bytes, num_slots, self.model.device) if num_slots else None

    def record(self) -> None:
        """Record steps, where the settings say so; ahead of the first step, on any thread. Takes seconds.

        Raises ConfigError where they insist and it cannot be done.
        """
        device = self.model.device
        with torch.cuda.device(device) if self._is_cuda else nullcontext():
            capture = capture_for(self._settings.graphs, device)
            if capture is not None:
                told = self.model, self._kv, self._last_ids, self._settings, capture
                self.graphs = record(*told)
                self.step_graphs = record_steps(*told) if self.graphs is not None else None

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Make this thread's work go to the runner's own stream; on the CPU there is none."""
        device = self.model.device
        if not self._is_cuda:
            yield
            return
        # cuDNN plans attention anew for every length it has not met, and to decode is to meet a new length each step:
        # on an H200 such a step took 45 ms, and takes 5 with the other kernels.
        torch.backends.cuda.enable_cudnn_sdp(False)
        with torch.cuda.device(device):
            # Ahead of an encoder in the same process: a running answer waits for one kernel of it, not for a batch.
            stream = new_stream(device, HIGHEST_PRIORITY)
            stream.wait_stream(torch.cuda.default_stream(device))  # on which the weights were loaded
            with torch.cuda.stream(stream):
                yield

    # Blocks

    def stamp(self, blocks: Sequence[BlockRef]) -> None:
        """Write new owners' generations, ahead of the first byte that they write."""
        if self._slab is None or not blocks:
            return
        ids, generations = [block.id for block in blocks], [block.generation for block in blocks]
        if self._stamps is None or self._stamped is None:
            self._slab.stamp(ids, generations)
            return
        with torch.cuda.stream(self._stamps):
            self._slab.stamp(ids, generations)
            self._stamped.record()
        torch.cuda.current_stream().wait_event(self._stamped)

    def fence(self, blocks: Sequence[int]) -> None:
        """Wait until other streams and threads may write into these blocks, which have just been given away.

        For their stamps, which take some microseconds, and for launched work that uses them. That is rare: it was
        launched for a branch that has ended since, with the token that was then still on its way.
        """
        for used in self._in_use:
            if np.isin(used.blocks, blocks).any():
                used.ended.synchronize()
        if self._stamped is not None:
            self._stamped.synchronize()

    @torch.inference_mode()
    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to) each."""
        if pairs:
            (moves,) = self._stage.send([np.array(pairs, dtype=np.int64).T.copy()])
            self._blocks.index_copy_(0, moves[1], self._blocks.index_select(0, moves[0]))
            self._note_use(np.array(pairs, dtype=np.int64).reshape(-1))

    def move_blocks(self, swaps: Sequence[Swap]) -> None:
        """Between the slab and host memory, in this order, behind what is launched already."""
        if self._swap_space is not None and swaps:
            self._swap_space.move(self._blocks, swaps)
            self._note_use(np.concatenate([np.array(swap.blocks, dtype=np.int64) for swap in swaps]))

    def _note_use(self, blocks: Int64Array) -> torch.cuda.Event | None:
        if not self._is_cuda:
            return None
        while self._in_use and has_completed(self._in_use[0].ended):
            self._in_use.popleft()
        ended = new_sleeping_event()
        ended.record()
        self._in_use.append(BlocksInUse(blocks, ended))
        return ended

    # Steps

    @torch.inference_mode()
    def launch(self, work: Work) -> Logits:
        """Does not wait for the device. A replay where the step's shape was recorded."""
        rows = self._rows.update(work.branches)
        draws = [*rows.draws, *(draw for draws in work.first for draw in draws)]
        if work.stretches:
            return self._launch_step(work, rows, draws)
        bucket = self.graphs.bucket(rows) if self.graphs is not None else None
        if self.graphs is None or bucket is None:
            return self._launch_step(work, rows, draws)
        wanted = wishes(draws, None, rows.count, rows.sources.tolist())
        last_ids = self._kept_ids(wanted)
        replayed = self.graphs.replay(bucket, rows, self._rows)
        blocks = rows.slots // self.block_size
        return self._replayed(replayed, rows, rows.count, draws, wanted, last_ids, blocks)

    @torch.inference_mode()
    def choose(self, made: Logits, masks: Mapping[str, Numbers] | None = None) -> Drawing:
        """Choose tokens, to be read from what this returns; does not wait for the device.

        masks: `Guidance.masks`, of draws under a grammar
        """
        report = made.report
        if report is None and made.draws:
            wanted = made.wanted | self._ship(dict(masks)) if masks else made.wanted
            ids, report = choose(made.logits, wanted, made.draws, made.last_ids)
            self._last_ids[: made.rows.count].copy_(ids[: made.rows.count])
        on_host = report.to("cpu", non_blocking=True) if report is not None else None
        return Drawing(made.draws, on_host, self._note_use(made.blocks))

    def _launch_step(self, work: Work, rows: Rows, draws: Sequence[Draw]) -> Logits:
        """One with prompts in it, or of no recorded shape."""
        flat = flatten(rows, self._rows.table, work.stretches, self.block_size)
        wanted = self._wishes(work, rows, draws, len(flat.logits_at)) if draws else {}
        blocks = np.unique(flat.slots // self.block_size)
        shape = self.step_graphs.shape(flat) if self.step_graphs is not None else None
        if self.step_graphs is None or shape is None:
            logits, shipped = self._compute(work, rows, flat, wanted)
            return Logits(logits, None, rows, draws, shipped, self._last_ids, blocks)
        last_ids = self._kept_ids(wanted)
        replayed = self.step_graphs.replay(shape, flat, rows.sources, work.overlays)
        return self._replayed(replayed, rows, len(flat.logits_at), draws, wanted, last_ids, blocks)

    def _compute(
        self, work: Work, rows: Rows, flat: Flat, wanted: dict[str, Numbers]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits, kernel by kernel; and what is wanted, on the device."""
        self._threads.take(len(flat.slots))
        shipped = self._stage.send([*flat.arrays, rows.sources, *wanted.values()])
        num_inputs = len(flat.arrays)
        token_ids, inputs = flat.inputs(shipped[:num_inputs])
        if rows.has_pending:
            self._feed(token_ids[: rows.count], shipped[num_inputs])
        embeddings, deepstack = fuse(self.model.embed(token_ids), work.overlays, self.model.levels)
        logits = self.model.forward(embeddings, replace(inputs, deepstack=deepstack), self._kv)
        return logits, dict(zip(wanted, shipped[num_inputs + 1 :], strict=True))

    def _kept_ids(self, wanted: dict[str, Numbers]) -> Tensor:
        """The ids that the step before has chosen, where they are asked for: a replay writes over them."""
        return self._last_ids.clone() if "late_at" in wanted else self._last_ids

    def _replayed(
        self,
        replayed: Replayed,
        rows: Rows,
        count: int,
        draws: Sequence[Draw],
        wanted: dict[str, Numbers],
        last_ids: Tensor,
        blocks: Int64Array,
    ) -> Logits:
        """count: logits that are asked for, of all that were made"""
        is_plain = bool(draws) and not wanted and all(draw.is_plain for draw in draws)
        report = replayed.report[:count] if is_plain else None
        return Logits(replayed.logits[:count], report, rows, draws, self._ship(wanted), last_ids, blocks)

    def _wishes(self, work: Work, rows: Rows, draws: Sequence[Draw], num_rows: int) -> dict[str, Numbers]:
        """As the sampler's; of the stretches, those with draws are those that want logits."""
        if not work.first:
            return wishes(draws, None, num_rows, rows.sources.tolist())
        asking = [len(draws) for draws in work.first if draws]
        row_of = [*range(rows.count), *np.repeat(np.arange(rows.count, rows.count + len(asking)), asking).tolist()]
        pending = [*rows.sources.tolist(), *([-1] * sum(asking))]
        return wishes(draws, row_of, num_rows, pending)

    def _feed(self, token_ids: Tensor, sources: Tensor) -> None:
        """Put in the tokens that the device alone knows."""
        fed = self._last_ids.index_select(0, sources.clamp_min(0))
        token_ids.copy_(torch.where(sources >= 0, fed, token_ids))

    def _ship(self, wanted: dict[str, Numbers]) -> dict[str, Tensor]:
        return dict(zip(wanted, self._stage.send(list(wanted.values())), strict=True)) if wanted else {}
