"""What makes the KV of two prompts' blocks the same: one chained key per full block.

A block's key covers everything its KV was computed from: the key of the block before it, its token ids, their rope
positions, which rows of which items lie where in it, and the spans it is part of that are attended to as a whole. The
chain starts at the model's fingerprint and the tenant's salt. Equal keys mean equal KV; whatever differs in one pixel,
one option or one place of an image differs here, because items enter by the digest of their content. After vLLM's
prefix caching, which chains block hashes the same way; rope positions and row ranges are added for images.
"""

import struct

import numpy as np
from blake3 import blake3

from triptych.journey import Int64Array, Item, Layout
from triptych.multimodal.rope import rope_positions
from triptych.multimodal.rows import RowMap

KV_DOMAIN = b"triptych.kv.v1"

_STRETCH_BLOCKS = 32  # rope positions are computed for so many blocks at once


def root_key(fingerprint: bytes, salt: bytes, adapter: str = "") -> bytes:
    """Key in front of a prompt's first block, 32 bytes; prompts of different roots share nothing.

    adapter: name of the weights laid over the model's, empty for none
    """
    parts = (KV_DOMAIN, fingerprint, salt, adapter.encode())
    return blake3(b"".join(struct.pack("<Q", len(part)) + part for part in parts)).digest()


class BlockKeys:
    """Keys of a prompt's full blocks (and of what was generated behind it), computed one by one as they are asked for.

    A lookup that misses the first block costs one key.
    """

    def __init__(self, layout: Layout, rows: RowMap, generated: tuple[int, ...], block_size: int, root: bytes) -> None:
        """root: from root_key"""
        self._layout = layout
        self._generated = generated
        self._rows = rows
        self._ids = np.concatenate([layout.token_ids, np.array(generated, dtype=np.int32)]).astype("<i4", copy=False)
        self._block_size = block_size
        self._root = blake3(root + struct.pack("<Q", block_size)).digest()
        self._keys: list[bytes] = []
        self._names = {item.index: _name(item) for item in layout.items}
        self._rope_begin = 0
        self._rope: Int64Array = np.empty((3, 0), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ids) // self._block_size

    def __getitem__(self, place: int) -> bytes:
        """32 bytes. Raises IndexError for a block that is not full."""
        if not 0 <= place < len(self):
            raise IndexError(f"block {place} of {len(self)} full ones")
        while len(self._keys) <= place:
            previous = self._keys[-1] if self._keys else self._root
            self._keys.append(self._key(len(self._keys), previous))
        return self._keys[place]

    @property
    def num_tokens(self) -> int:
        """Of the prompt, and what was generated behind it."""
        return len(self._ids)

    def compute(self) -> None:
        """All keys, now and on this thread: afterwards asking for one costs nothing, on whichever thread."""
        if len(self):
            self[len(self) - 1]

    def are_of(self, layout: Layout, generated: tuple[int, ...]) -> bool:
        """Whether this is the prompt that the keys are made of."""
        return self._layout.digest == layout.digest and self._generated == generated

    def equal(self, other: "BlockKeys") -> bool:
        """Whether the same prompt has the same keys there: of one model, tenant and block size."""
        return self._root == other._root and self.are_of(other._layout, other._generated)

    def legal(self, num_blocks: int) -> int:
        """The most of these blocks that do not end inside an atomic span.

        A block that ends inside one depends on tokens behind it, which its key does not cover.
        """
        while (end := self._rows.legal_end(num_blocks * self._block_size)) < num_blocks * self._block_size:
            num_blocks = end // self._block_size
        return num_blocks

    def _key(self, place: int, previous: bytes) -> bytes:
        begin, end = place * self._block_size, (place + 1) * self._block_size
        hasher = blake3(previous)
        hasher.update(self._ids[begin:end].tobytes())
        hasher.update(self._rope_of(begin, end))
        hasher.update(self._items(begin, end))
        hasher.update(self._spans(begin, end))
        return hasher.digest()

    def _rope_of(self, begin: int, end: int) -> bytes:
        offset = begin - self._rope_begin
        if offset + self._block_size > self._rope.shape[1]:
            last = min(begin + _STRETCH_BLOCKS * self._block_size, len(self) * self._block_size)
            self._rope_begin, offset = begin, 0
            self._rope = rope_positions(self._layout, begin, last).astype("<i8", copy=False)
        return self._rope[:, offset : offset + end - begin].tobytes()

    def _items(self, begin: int, end: int) -> bytes:
        """Which rows of which items lie on which of the block's positions; their number goes first."""
        pieces = self._rows.pieces(begin, end)
        packed = [struct.pack("<Q", len(pieces))]
        for piece in pieces:
            packed.append(self._names[piece.item_index])
            packed.append(struct.pack("<QQ", piece.row_begin, piece.row_end))
            packed.append((piece.positions - begin).astype("<i8", copy=False).tobytes())
        return b"".join(packed)

    def _spans(self, begin: int, end: int) -> bytes:
        """The atomic spans that reach into the block: there a token's KV depends on tokens that follow it."""
        runs = [run for run in self._layout.atomic if run.start < end and run.end > begin]
        numbers = [number for run in runs for number in (run.start - begin, run.length)]
        return struct.pack(f"<Q{len(numbers)}q", len(runs), *numbers)


def computed_keys(
    fingerprint: bytes, layout: Layout, generated: tuple[int, ...], salt: bytes, block_size: int
) -> BlockKeys:
    """All keys of a prompt, computed on this thread: some 10 us a block."""
    keys = BlockKeys(layout, RowMap(layout), generated, block_size, root_key(fingerprint, salt))
    keys.compute()
    return keys


def _name(item: Item) -> bytes:
    """32 bytes over what the encoder's cache tells items apart by, so that nothing is one item here and two there."""
    grid = item.grid
    numbers = (grid.t, grid.h, grid.w, item.width, item.height, item.rows, item.encoder_tokens)
    return blake3(item.digest + struct.pack("<7q", *numbers) + item.modality.encode()).digest()
