"""Host memory for the KV of sequences that make room, and the copies in and out of it."""

import logging
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from triptych.engine.plan import Swap

log = logging.getLogger(__name__)

CHUNK_BYTES = 64 << 20


class SwapSpace:
    """Slots of one block each, pinned where the blocks lie on a GPU.

    Memory is made chunk by chunk when a slot of it is first written: to pin a gigabyte takes a quarter of a second, and
    most servers never need it. All copies are queued on the current stream, in both directions, so what a slot holds is
    ordered by that stream alone and nobody waits for anything.
    """

    def __init__(self, block_bytes: int, num_slots: int, device: torch.device) -> None:
        self._block_bytes = block_bytes
        self._per_chunk = max(1, min(num_slots, CHUNK_BYTES // block_bytes))
        self._num_slots = num_slots
        self._pinned = device.type == "cuda"
        self._chunks: dict[int, Tensor] = {}  # [slots, block_bytes] uint8

    @torch.inference_mode()
    def move(self, blocks: Tensor, swaps: Sequence[Swap]) -> None:
        """Queue these copies, in this order, behind what is queued already.

        blocks: [blocks, block_bytes] uint8, the whole slab
        """
        for swap in swaps:
            for block, slot, count in _runs(swap, self._per_chunk):
                chunk, first = self._chunk(slot // self._per_chunk), slot % self._per_chunk
                device, host = blocks[block : block + count], chunk[first : first + count]
                if swap.out:
                    host.copy_(device, non_blocking=True)
                else:
                    device.copy_(host, non_blocking=True)

    def _chunk(self, index: int) -> Tensor:
        chunk = self._chunks.get(index)
        if chunk is None:
            slots = min(self._per_chunk, self._num_slots - index * self._per_chunk)
            chunk = self._chunks[index] = self._allocate(slots)
        return chunk

    def _allocate(self, slots: int) -> Tensor:
        shape = (slots, self._block_bytes)
        if self._pinned:
            try:
                return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:  # a limit on locked memory; what is left works, and waits for each copy
                self._pinned = False
                log.warning("no pinned host memory for KV that makes room, copies will be slower: %s", error)
        return torch.empty(shape, dtype=torch.uint8)


def _runs(swap: Swap, per_chunk: int) -> Iterator[tuple[int, int, int]]:
    """(first block, first slot, how many) where both go on without a gap, and the slots in one chunk."""
    pairs = list(zip(swap.blocks, swap.slots, strict=True))
    begin = 0
    for place in range(1, len(pairs) + 1):
        if place < len(pairs):
            (block, slot), (last_block, last_slot) = pairs[place], pairs[place - 1]
            if (block, slot) == (last_block + 1, last_slot + 1) and slot % per_chunk:
                continue
        yield (*pairs[begin], place - begin)
        begin = place
