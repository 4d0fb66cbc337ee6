"""A second copy of decoding sequences' keys, turned: one number of many tokens side by side instead of a token's all.

A product of one query and a sequence's keys is then a weighted sum of rows, which is what torch's embedding_bag does
fastest; see bag_decode.py. A sequence's keys are turned once, when it is first met; each step adds one column.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

_FEWEST_TOKENS = 64  # of a chunk: rows of four cache lines
_FREE_CHUNKS = 64  # more than the slab's tokens need, since each sequence may leave most of one free
_MOST_BYTES = 1 << 30


@dataclass(slots=True)
class _Held:
    chunks: list[int]
    length: int  # tokens whose columns are there, or are put in by the step that was told last


class KeyColumns:
    """Chunks [layers, kv_heads, head_size, chunk_tokens] of keys, by history (see PagedInputs). Used by one thread.

    Behind a sequence's last token its last chunk holds zeros.
    """

    def __init__(self, kv_slab: Tensor) -> None:
        """kv_slab: those of later steps may differ in the number of blocks."""
        blocks, layers, _, block_size, kv_heads, head_size = kv_slab.shape
        self.chunk_tokens = -(-_FEWEST_TOKENS // block_size) * block_size
        chunk_bytes = layers * kv_heads * head_size * self.chunk_tokens * kv_slab.dtype.itemsize
        wanted = -(-blocks * block_size // self.chunk_tokens) + _FREE_CHUNKS
        count = max(min(wanted, _MOST_BYTES // chunk_bytes), 1)
        # Pages that are never written take no memory.
        self.pool = torch.zeros(count, layers, kv_heads, head_size, self.chunk_tokens, dtype=kv_slab.dtype)
        self._free = list(range(count - 1, -1, -1))  # the last is taken first: it is likeliest in the cache
        self._held: dict[int, _Held] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    def keep(self, histories: Iterable[int]) -> None:
        """Forget all others."""
        for history in self._held.keys() - set(histories):
            self._forget(history)

    def hold(self, history: int, length: int, kv_slab: Tensor, blocks: Tensor) -> list[int] | None:
        """Chunks with the keys of all `length` tokens but the last, whose column is for the step to put in.

        blocks: of the slab, int64, in which the tokens before it are found where they are not known from a step before
        None where there is no room; nothing is held of that sequence then.
        """
        held = self._held.get(history)
        if held is None or held.length != length - 1:
            return self._turn(history, length, kv_slab, blocks)
        if held.length % self.chunk_tokens == 0:
            if not self._free:
                self._forget(history)
                return None
            held.chunks.append(self._free.pop())
            self.pool[held.chunks[-1]].zero_()
        held.length = length
        return held.chunks

    def _turn(self, history: int, length: int, kv_slab: Tensor, blocks: Tensor) -> list[int] | None:
        self._forget(history)
        count = -(-length // self.chunk_tokens)
        if count > len(self._free):
            return None
        chunks = [self._free.pop() for _ in range(count)]
        self._held[history] = _Held(chunks, length)
        block_size = kv_slab.shape[3]
        per_chunk = self.chunk_tokens // block_size
        read = kv_slab[:, :, 0].index_select(0, blocks[: -(-(length - 1) // block_size)])
        for number, chunk in enumerate(chunks):
            part = read[number * per_chunk : (number + 1) * per_chunk].permute(1, 3, 4, 0, 2)
            into = self.pool[chunk].view(*self.pool.shape[1:4], per_chunk, block_size)
            into[:, :, :, : part.shape[3]].copy_(part)
        self.pool[chunks[-1], ..., (length - 1) % self.chunk_tokens :] = 0
        return chunks

    def _forget(self, history: int) -> None:
        held = self._held.pop(history, None)
        if held is not None:
            self._free += reversed(held.chunks)
