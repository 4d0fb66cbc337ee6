"""What the engine asks of a model, and what an adapter tells about a family (the torch half)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triptych.journey import Grid, Int32Array, Int64Array


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """Shape of one token's keys and values.

    A KV slab is one tensor [blocks, layers, 2, block_size, kv_heads, head_size]: a block is one contiguous piece over
    all layers, so that handing one over is one copy. Axis 2: keys, values.
    """

    layers: int
    kv_heads: int
    head_size: int
    dtype: torch.dtype
    scaling: str = ""  # names the scales that keys and values are divided by; empty: they are what the model makes

    def block_bytes(self, block_size: int) -> int:
        return self.layers * 2 * block_size * self.kv_heads * self.head_size * self.dtype.itemsize

    def slab_shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        return (num_blocks, self.layers, 2, block_size, self.kv_heads, self.head_size)


@dataclass(frozen=True, slots=True)
class PagedInputs:
    """Where the tokens of one flattened step stand; the sequences follow one another along the token axis.

    Host tuples are what Python reads; tensors are on the model's device and are only ever read there.
    """

    positions: Tensor  # [3, tokens] int64  rope positions (t, h, w)
    slots: Tensor  # [tokens] int64  block_id * block_size + offset: where each token's K and V go
    query_lengths: tuple[int, ...]  # new tokens of each sequence; they add up to tokens
    kv_lengths: tuple[int, ...]  # tokens of each sequence after this step
    block_tables: Tensor  # [sequences, most blocks] int64, rows padded with 0
    logits_at: Tensor  # [asked] int64  token indices whose logits are wanted
    deepstack: Tensor | None = None  # [levels - 1, tokens, hidden]  rows added behind early layers; 0 at text
    histories: tuple[int, ...] = ()  # of each sequence, a number that names all its KV, past and to come; 0: untold


@dataclass(frozen=True, slots=True, eq=False)
class PreparedPixels:
    """An item as the vision tower takes it: resized and not yet normalised, a fraction of its patches' bytes."""

    pixels: Tensor  # [3, height, width] uint8, on the CPU or on the tower's device
    grid: Grid  # patches before merging; the encoder attends over as many
    rows: int


Prepared = PreparedPixels


class LanguageModel(Protocol):
    """A decoder without its vision tower."""

    hidden_size: int
    levels: int  # 1 + deepstack, as of the towers whose rows it takes
    vocab_size: int
    max_model_len: int
    dtype: torch.dtype
    device: torch.device
    kv: KVGeometry

    def embed(self, token_ids: Tensor) -> Tensor:
        """Text embeddings [tokens, hidden] of ids [tokens] int64."""

    def forward(self, embeddings: Tensor, inputs: PagedInputs, kv_slab: Tensor) -> Tensor:
        """Logits [asked, vocab] float32; writes the step's K and V into the slab. No host synchronisation."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeInputs:
    """One new token of each of n sequences, told by tensors alone.

    A recorded step reads whatever lies in them when it is replayed: nothing of it is known to the host but n and the
    width of the block tables. A row that stands for no sequence has slot -1 (nothing is written) and kv_length 0 (its
    logits mean nothing).
    """

    token_ids: Tensor  # [n] int64
    positions: Tensor  # [3, n] int64  rope positions (t, h, w)
    slots: Tensor  # [n] int64  block_id * block_size + offset, where the token's K and V go
    kv_lengths: Tensor  # [n] int32  tokens of each sequence after this step
    block_tables: Tensor  # [n, most blocks] int32


@dataclass(frozen=True, slots=True, order=True)
class StepShape:
    """What a recorded step with prompts in it has room for."""

    tokens: int
    sequences: int
    prompts: int  # among them, with several tokens


@dataclass(frozen=True, slots=True, eq=False)
class StepInputs:
    """New tokens of several sequences, prompts among them, told by tensors alone, as those of DecodeInputs are.

    Rows that stand for no sequence come last and are zeros. Tokens that belong to none come last as well, with slot
    -1; what becomes of them means nothing.
    """

    positions: Tensor  # [3, tokens] int64  rope positions (t, h, w)
    slots: Tensor  # [tokens] int64  block_id * block_size + offset, where each token's K and V go
    sequences: Tensor  # [3, n] int32  first token, new tokens, tokens after this step
    block_tables: Tensor  # [n, most blocks] int32
    logits_at: Tensor  # [n] int64  token indices whose logits are wanted, then zeros
    listed: Sequence[Tensor]  # `list_step` of the sequences, on the device
    deepstack: Tensor | None = None  # as of PagedInputs


class GraphLanguageModel(LanguageModel, Protocol):
    """One whose decode steps can be recorded as CUDA graphs."""

    def decode(self, inputs: DecodeInputs, kv_slab: Tensor) -> Tensor:
        """Logits [n, vocab] float32; writes the step's K and V into the slab.

        No host synchronisation, no memory kept but the slab's and what a first call at this n has set up, and nothing
        of what is launched depends on the numbers in the tensors.
        """


class StepLanguageModel(GraphLanguageModel, Protocol):
    """One whose steps with prompts in them can be recorded, too."""

    def list_step(self, sequences: Int32Array, shape: StepShape, block_size: int) -> list[NDArray[np.generic]]:
        """What attention has to be told of sequences [3, n], as those of StepInputs: arrays of this shape's sizes."""

    def step(self, embeddings: Tensor, inputs: StepInputs, kv_slab: Tensor) -> Tensor:
        """Logits [n, vocab] float32 of embeddings [tokens, hidden]; as `decode` otherwise."""


class VisionTower(Protocol):
    """An encoder without its language model."""

    width: int  # numbers per embedding row
    levels: int  # 1 + deepstack
    context_kinds: tuple[str, ...]  # what its layers attend inside of, as ("frames", "windows"); may be empty
    dtype: torch.dtype
    device: torch.device

    def patches(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> Tensor:
        """Patches [patches of all items, patch numbers], on the tower's device, of pixels [3, height, width] uint8."""

    def encode(self, patches: Tensor, grids: tuple[Grid, ...]) -> Tensor:
        """Rows [rows of all items, levels * width] of patches [patches of all items, patch numbers]; no host sync."""


@dataclass(frozen=True, slots=True)
class StaticInput:
    """A tensor that captured work reads: it keeps its address, and is filled anew before each replay."""

    name: str
    shape: tuple[int, ...]  # without the token axis
    token_axis: int  # where that one is put in
    dtype: torch.dtype

    def tensor(self, tokens: int, device: torch.device | str = "cpu") -> Tensor:
        """Zeros with room for so many tokens: of (16) at axis 0 [tokens, 16], of (3, 16) at axis 1 [3, tokens, 16]."""
        axis = self.token_axis
        return torch.zeros(*self.shape[:axis], tokens, *self.shape[axis:], dtype=self.dtype, device=device)


@dataclass(frozen=True, slots=True, eq=False)
class BatchShape:
    """How the patches of a batch of items hang together; worked out on the host, from the grids alone.

    positions: [tokens, axes] where each patch stands in its grid, in order of arrival
    contexts:  of each of the tower's context kinds, patches of each context, in the order of the blocks' input
    row_order: [rows] which row, item by item, stands at each place of what the blocks make
    """

    tokens: int
    positions: Int64Array
    contexts: tuple[Int64Array, ...]
    row_order: Int64Array


class GraphTower(Protocol):
    """A vision tower cut in two: a prelude that follows the batch, and blocks whose every shape is fixed by padding.

    The blocks are captured once per shape and replayed; see engine/encoder_graphs.py.
    """

    width: int  # as of VisionTower, with levels and dtype
    levels: int
    dtype: torch.dtype
    device: torch.device
    context_kinds: tuple[str, ...]
    static_inputs: tuple[StaticInput, ...]  # what the prelude writes and the blocks read
    tokens_per_row: int
    longest_contexts: tuple[int | None, ...]  # of each kind, patches; None: as long as a batch

    def most_contexts(self, tokens: int, items: int) -> tuple[int, ...]:
        """Of each kind, the contexts that so many tokens in so many items come to at most."""

    def shape(self, grids: Sequence[Grid]) -> BatchShape:
        """What the host knows of a batch."""

    def prelude(self, patches: Tensor, shape: BatchShape, out: Mapping[str, Tensor]) -> None:
        """Fills the first `shape.tokens` tokens of each static input from patches [tokens, patch numbers]."""

    def blocks(self, inputs: Mapping[str, Tensor], boundaries: Sequence[Tensor], longest: Sequence[int]) -> Tensor:
        """Rows [tokens / tokens_per_row, levels * width] of static inputs, in the order that `row_order` tells.

        boundaries: of each kind, [contexts + 1] int32 on the device, from 0 to all tokens; contexts may be empty
        longest:    of each kind, no context has more tokens

        No host synchronisation on CUDA, and nothing there depends on the numbers in the tensors but their results.
        """
