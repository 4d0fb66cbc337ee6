"""Claims that do not lie as they shall land: in several shards, or in KV blocks of another format. To checked pulls.

Rows in n shards: each shard has all rows of every n-th part of their columns, the first shard the first part, whether
that is a level or what one rank computed. KV in several shards: the same block ids in each rank's arena, and in each
that rank's heads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd

import numpy as np
import torch
from torch import Tensor

from triptych.errors import TransferFailed
from triptych.journey import BlockRef, EmbeddingRef, Int64Array, KVRef
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.cuda_events import has_completed, new_stream
from triptych.transfer.kv_format import KVFormat
from triptych.transfer.mapping import Mapping, poll_until
from triptych.transfer.plan import (
    bytes_of,
    claimed_blocks,
    claimed_units,
    plan_blocks,
    plan_rows,
    require_apart,
    require_rows,
)
from triptych.transfer.pull import Copier, Pull
from triptych.transfer.repack import Pieces, Tokens, equal_pieces, repacked

_NONE: Int64Array = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Repack:
    """Where claimed tokens go.

    theirs: of the owner's first rank; asked once it is connected. May raise TransferFailed
    blocks: of the whole prompt, from its first token on
    keep:   what lies before this token of the prompt is others' too, and is not written
    """

    theirs: Callable[[], KVFormat]
    mine: KVFormat
    blocks: Sequence[int]
    keep: int = 0


def plan_row_shards(ref: EmbeddingRef, sources: Sequence[Mapping], into: Tensor) -> list[Pull]:
    """As `plan_rows`, a pull for each of the ref's shards."""
    if len(sources) == 1:
        return [plan_rows(ref, sources[0], into)]
    require_rows(ref, into)
    flat, count = bytes_of(into), len(sources)
    if flat.numel() % (count * ref.rows):
        raise TransferFailed(f"rows of {flat.numel() // ref.rows} bytes came in {count} shards of unequal width")
    row_bytes = flat.numel() // ref.rows
    part_bytes = row_bytes // count
    rows = np.arange(ref.rows, dtype=np.int64)
    pulls = []
    for place, (shard, source) in enumerate(zip(ref.shards, sources, strict=True)):
        units, generations = claimed_units(ref, shard, source, ref.rows * part_bytes)
        require_apart(source, flat)
        begins = (shard.offset + rows * part_bytes, rows * row_bytes + place * part_bytes)
        piece_bytes = gcd(part_bytes, shard.offset, source.info.unit_bytes)
        pieces = equal_pieces(*begins, part_bytes, piece_bytes)
        pulls.append(_pull(source, flat, pieces, units, generations, ref.event))
    return pulls


def plan_same_blocks(ref: KVRef, sources: Sequence[Mapping], into: Tensor, block_ids: Sequence[int]) -> list[Pull]:
    """`plan_blocks` for a ref in one shard. Raises TransferFailed for one in several."""
    if len(sources) != 1:
        raise TransferFailed(f"KV in {len(sources)} shards has to be repacked")
    return [plan_blocks(ref, sources[0], into, block_ids)]


def plan_repacked(ref: KVRef, sources: Sequence[Mapping], repack: Repack, into: Tensor) -> list[Pull]:
    """The ref's tokens into blocks of `into` [blocks, block_bytes] uint8, a pull for each shard that has heads for it.

    Raises TransferFailed when ref, formats and destination do not fit together, ClaimExpired for generation 0.
    """
    theirs, mine = repack.theirs(), repack.mine
    if into.dtype != torch.uint8 or into.dim() != 2 or into.shape[1] != mine.block_bytes:
        raise TransferFailed(f"KV of {mine.block_bytes} bytes a block is to go into {tuple(into.shape)} {into.dtype}")
    _require_targets(repack.blocks, into.shape[0])
    flat = bytes_of(into)
    tokens = Tokens(
        ref.tokens_begin, ref.tokens_end, repack.keep, [block.id for block in ref.blocks], tuple(repack.blocks)
    )
    missing = set(range(mine.first_head, mine.end_head))
    pulls = []
    for shard, source in zip(ref.shards, sources, strict=True):
        form = theirs.of_rank(shard.rank)
        units, generations = claimed_blocks(ref, shard, source, form.block_bytes)
        heads = range(max(form.first_head, mine.first_head), min(form.end_head, mine.end_head))
        if missing.isdisjoint(heads):
            continue
        require_apart(source, flat)
        pulls.append(_pull(source, flat, repacked(form, mine, tokens, heads), units, generations, ref.event))
        missing.difference_update(heads)
    if missing:
        raise TransferFailed(f"heads {min(missing)}..{max(missing)} of KV are in none of {len(sources)} shards")
    return pulls


class Landed:
    """Memory that a claim lands in as it is, for a checksum ahead of its repacking."""

    def __init__(self, ref: KVRef, device: torch.device, deadline: float) -> None:
        """deadline: time.monotonic, for whoever had the memory before"""
        self._mappings: list[Mapping] = []
        self._ref = ref
        self._device = device
        self._deadline = deadline
        self._landed: list[Tensor] = []

    def plan(self, sources: Sequence[Mapping]) -> list[Pull]:
        """Each shard's blocks, one behind the other."""
        count = len(self._ref.blocks)
        pulls = []
        for shard, source in zip(self._ref.shards, sources, strict=True):
            into = self._memory(count, source.info.unit_bytes)
            pulls.append(plan_blocks(replace(self._ref, shards=(shard,)), source, into, range(count)))
            self._landed.append(into)
            self._mappings.append(_Landing(source.info, into))
        return pulls

    def _memory(self, *shape: int) -> Tensor:
        """[*shape] uint8 that nothing queued writes into any more. Raises TransferFailed at the deadline."""
        if self._device.type != "cuda":
            return torch.empty(shape, dtype=torch.uint8)
        stream = new_stream(self._device)  # a step of the model, on its own stream, is not waited for
        with torch.cuda.stream(stream):
            memory = torch.empty(shape, dtype=torch.uint8, device=self._device)
            is_free = partial(has_completed, stream.record_event())
        poll_until(is_free, self._deadline, "memory for KV to land in")
        return memory

    def repack(self, repack: Repack, into: Tensor) -> list[Pull]:
        """From there to where it belongs, once it has landed. Nobody vouches for these copies: they have no units."""
        blocks = tuple(BlockRef(place, block.generation) for place, block in enumerate(self._ref.blocks))
        pulls = plan_repacked(replace(self._ref, blocks=blocks, event=0), self._mappings, repack, into)
        return [replace(pull, units=_NONE, generations=_NONE) for pull in pulls]

    def checksum(self, copier: Copier) -> bytes:
        """Of all shards' blocks in order."""
        return copier.checksum(self._landed[0] if len(self._landed) == 1 else torch.cat(self._landed))


class _Landing:
    """Blocks that have landed, as what a copier reads from."""

    transport = "landing"

    def __init__(self, info: ArenaInfo, data: Tensor) -> None:
        self.info = info
        self.device = data.device
        self.data = data.view(-1)
        self.words = torch.empty(0, dtype=torch.int64)

    def wait_event(self, index: int, deadline: float) -> None:
        """What has landed is there."""

    def close(self) -> None:
        """The memory stays whoever's it is."""


def _pull(
    source: Mapping, into: Tensor, pieces: Pieces, units: Int64Array, generations: Int64Array, event: int
) -> Pull:
    where = (pieces.sources, pieces.targets)
    return Pull(source, into, (), units, generations, event, where, piece_bytes=pieces.num_bytes)


def _require_targets(blocks: Sequence[int], num_blocks: int) -> None:
    if not blocks or min(blocks) < 0 or max(blocks) >= num_blocks or len(set(blocks)) != len(blocks):
        raise TransferFailed(f"the destination names {len(blocks)} KV blocks, each once, of {num_blocks}")
