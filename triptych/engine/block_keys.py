"""What makes the KV of two prompts' blocks the same: one chained key per full block.

A block's key covers everything its KV was computed from: the key of the block before it, its token ids, their rope
positions, which rows of which items lie where in it, and the spans it is part of that are attended to as a whole. The
chain starts at the model's fingerprint and the tenant's salt. Equal keys mean equal KV; whatever differs in one pixel,
one option or one place of an image differs here, because items enter by the digest of their content. After vLLM's
prefix caching, which chains block hashes the same way; rope positions and row ranges are added for images.
"""

import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from triptych.journey import Item, Layout
from triptych.multimodal.rope import rope_numbers, rope_positions
from triptych.multimodal.rows import RowMap

KV_DOMAIN = b"triptych.kv.v2"

_LAID_OUT_BLOCKS = 256  # what their keys cover is laid out for so many blocks at once
_KNOWN_BLOCKS = 32  # whose keys are known together
_KNOWN_STRETCHES = 2048  # some 4 KB each
_NO_ITEM = -1
_NO_SPANS = struct.pack("<Q", 0)


def root_key(fingerprint: bytes, salt: bytes, adapter: str = "") -> bytes:
    """Key in front of a prompt's first block, 32 bytes; prompts of different roots share nothing.

    adapter: name of the weights laid over the model's, empty for none
    """
    parts = (KV_DOMAIN, fingerprint, salt, adapter.encode())
    return blake3(b"".join(struct.pack("<Q", len(part)) + part for part in parts)).digest()


class KnownKeys:
    """Keys of the stretches that were computed last, by all that they cover. Thread-safe.

    Prompts that begin alike, with the same images or the same instructions, take them from here: all keys but some of a
    prompt of 5,000 tokens, at a tenth of what it takes to make them. What they cover is told in runs, not token by
    token: arrays of thousands of numbers are a library's to work on, which gives the interpreter away for each.
    """

    def __init__(self, most: int = _KNOWN_STRETCHES) -> None:
        self.hits = 0
        self._most = most
        self._lock = threading.Lock()
        self._keys: OrderedDict[bytes, Sequence[bytes]] = OrderedDict()  # what was asked for last is last

    def get(self, covered: bytes) -> Sequence[bytes] | None:
        """covered: the key before the stretch, and what tells all that its own keys cover"""
        with self._lock:
            keys = self._keys.get(covered)
            if keys is not None:
                self._keys.move_to_end(covered)
                self.hits += 1
            return keys

    def put(self, covered: bytes, keys: Sequence[bytes]) -> None:
        with self._lock:
            self._keys[covered] = keys
            if len(self._keys) > self._most:
                self._keys.popitem(last=False)


class BlockKeys:
    """Keys of a prompt's full blocks (and of what was generated behind it), computed one by one as they are asked for.

    A lookup that misses the first block costs one key.
    """

    def __init__(
        self,
        layout: Layout,
        generated: tuple[int, ...],
        block_size: int,
        root: bytes,
        known: KnownKeys | None = None,
    ) -> None:
        """root: from root_key. Raises InvalidRecord for atomic spans that cannot be."""
        self._layout = layout
        self._rows = RowMap(layout) if layout.atomic else None
        self._generated = generated
        ids = np.concatenate([layout.token_ids, np.array(generated, dtype=np.int32)]) if generated else layout.token_ids
        self._ids = ids.astype("<i4", copy=False)
        self._block_size = block_size
        self._root = blake3(root + struct.pack("<Q", block_size)).digest()
        self._keys: list[bytes] = []
        self._names = {item.index: _name(item) for item in layout.items}
        self._stretch = _Stretch(0, b"", 1, [])
        self._known = known

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
        while self._known is not None and len(self._keys) + _KNOWN_BLOCKS <= len(self):
            self._take(self._known, len(self._keys))
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
        if self._rows is None:
            return num_blocks
        while (end := self._rows.legal_end(num_blocks * self._block_size)) < num_blocks * self._block_size:
            num_blocks = end // self._block_size
        return num_blocks

    def _take(self, known: KnownKeys, first: int) -> None:
        """The keys of so many blocks from those that are known, or computed and known from now on."""
        covered = (self._keys[-1] if self._keys else self._root) + self._told(first)
        keys = known.get(covered)
        if keys is None:
            self[first + _KNOWN_BLOCKS - 1]
            known.put(covered, tuple(self._keys[first:]))
        else:
            self._keys.extend(keys)

    def _told(self, first: int) -> bytes:
        """What the keys of so many blocks cover, in no more than one way for any two prompts that differ there."""
        begin, end = first * self._block_size, (first + _KNOWN_BLOCKS) * self._block_size
        prompt_tokens = self._layout.num_tokens
        numbers = [prompt_tokens - begin, self._layout.rope_delta] if end > prompt_tokens else []
        counts, at = [len(numbers)], 0
        for run in self._layout.rope:
            if at < end and at + run.length > begin:
                numbers += (at - begin, min(at + run.length, end) - begin, *rope_numbers(run)[1:])
            at += run.length
        counts.append(len(numbers))
        names: list[bytes] = []
        for index, row, start, stop in self._laid_rows(begin, end):
            numbers += (index, row, start - begin, stop - begin)
            names.append(self._names[index])
        counts.append(len(numbers))
        packed = struct.pack(f"<3q{len(numbers)}q", *counts, *numbers)
        spans = [self._spans(place) for place in range(first, first + _KNOWN_BLOCKS)] if self._layout.atomic else []
        return b"".join([packed, *names, self._ids[begin:end].tobytes(), *spans])

    def _laid_rows(self, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Of each run of rows that reaches in there: item, row on its first position there, that position, its end."""
        for item in self._layout.items:
            row = 0
            for run in item.runs:
                start, stop = max(run.start, begin), min(run.end, end)
                if start < stop:
                    yield item.index, row + start - run.start, start, stop
                row += run.length

    def _key(self, place: int, previous: bytes) -> bytes:
        if place >= self._stretch.first + len(self._stretch.names):
            self._stretch = self._laid_out(place)
        return blake3(previous + self._stretch.of(place) + self._spans(place)).digest()

    def _laid_out(self, first: int) -> "_Stretch":
        """What the keys of the next blocks cover, all at once: one by one they would keep a thread busy for 10 ms."""
        count, size = min(_LAID_OUT_BLOCKS, len(self) - first), self._block_size
        begin, end = first * size, (first + count) * size
        rows = np.full((2, end - begin), _NO_ITEM, dtype="<i8")  # of each position: which item, which of its rows
        indexes: list[list[int]] = [[] for _ in range(count)]
        for index, row, start, stop in self._laid_rows(begin, end):
            rows[0, start - begin : stop - begin] = index
            rows[1, start - begin : stop - begin] = np.arange(row, row + stop - start)
            for block in range((start - begin) // size, (stop - 1 - begin) // size + 1):
                if indexes[block][-1:] != [index]:  # its runs follow one another
                    indexes[block].append(index)
        numbers = np.concatenate([rope_positions(self._layout, begin, end).astype("<i8", copy=False), rows])
        by_block = numbers.reshape(len(numbers), count, size).swapaxes(0, 1).reshape(count, -1)
        ids = self._ids[begin:end].reshape(count, size)
        covered = np.concatenate([ids.view(np.uint8), np.ascontiguousarray(by_block).view(np.uint8)], axis=1)
        names = [[self._names[index] for index in each] for each in indexes]
        return _Stretch(first, covered.tobytes(), covered.shape[1], names)

    def _spans(self, place: int) -> bytes:
        """The atomic spans that reach into the block: there a token's KV depends on tokens that follow it."""
        if not self._layout.atomic:
            return _NO_SPANS
        begin, end = place * self._block_size, (place + 1) * self._block_size
        runs = [run for run in self._layout.atomic if run.start < end and run.end > begin]
        numbers = [number for run in runs for number in (run.start - begin, run.length)]
        return struct.pack(f"<Q{len(numbers)}q", len(runs), *numbers)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Of some blocks that follow one another, what each one's key covers.

    covered: token ids, rope positions, items and rows of all of them, block by block, `width` bytes each
    names:   of the items that have rows in each
    """

    first: int
    covered: bytes
    width: int
    names: Sequence[Sequence[bytes]]

    def of(self, place: int) -> bytes:
        number = place - self.first
        names = self.names[number]
        return b"".join(
            [self.covered[number * self.width : (number + 1) * self.width], struct.pack("<Q", len(names)), *names]
        )


def computed_keys(
    fingerprint: bytes,
    layout: Layout,
    generated: tuple[int, ...],
    salt: bytes,
    block_size: int,
    known: KnownKeys | None = None,
) -> BlockKeys:
    """All keys of a prompt, computed on this thread: some 7 us a block, 0.5 where they are known."""
    keys = BlockKeys(layout, generated, block_size, root_key(fingerprint, salt), known)
    keys.compute()
    return keys


def _name(item: Item) -> bytes:
    """32 bytes over what the encoder's cache tells items apart by, so that nothing is one item here and two there."""
    grid = item.grid
    numbers = (grid.t, grid.h, grid.w, item.width, item.height, item.rows, item.encoder_tokens)
    return blake3(item.digest + struct.pack("<7q", *numbers) + item.modality.encode()).digest()
