"""What a decoder asks of attention, and what every implementation gives.

A step's tokens lie one behind the other; their keys and values are in the slab before they are attended to. The
result of a token depends on its own query and its sequence's keys and values alone, never on what else is in the step:
wherever a sum is split, it is split by the sequence's own length.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triptych.journey import Int32Array
from triptych.models.base import DecodeInputs, PagedInputs, StepInputs, StepShape


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Of one decoder and its slab [blocks, layers, 2, block_size, kv_heads, head_size].

    dtype:    of queries and results
    kv_dtype: of the slab: dtype, or float8_e4m3fn, whose numbers are what the keys and values are, without a scale
    scale:    of each product of a query and a key
    """

    heads: int
    kv_heads: int
    head_size: int
    block_size: int
    layers: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    scale: float

    def __post_init__(self) -> None:
        assert self.heads % self.kv_heads == 0, f"{self.heads} heads do not share {self.kv_heads} key heads evenly"

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.kv_heads


class AttentionStep(Protocol):
    """One forward step over all layers; what it works out of the step's inputs is worked out once."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Results [tokens, heads, head_size], contiguous; a padded row of a decode step comes out as zeros.

        query:      [tokens, heads, head_size], rotated
        key, value: [tokens, kv_heads, head_size] of the step itself, rotated and already in the slab

        All three may be views of one tensor: numbers and heads follow one another, rows may be further apart.
        """


class Attention(Protocol):
    """One implementation, of one shape on one device."""

    name: str
    recordable: bool  # whether a CUDA graph may record what `decode_step`, `told_step` and their `attend` launch

    def step(self, inputs: PagedInputs, kv_slab: Tensor) -> AttentionStep:
        """Attention of a step told on the host; nothing waits for the device."""

    def decode_step(self, inputs: DecodeInputs, kv_slab: Tensor) -> AttentionStep:
        """Attention of a step told by tensors alone. Waits for the device unless it is recordable."""

    def list_step(self, sequences: Int32Array, shape: StepShape) -> list[NDArray[np.generic]]:
        """What `told_step` wants listed on the host of a step's sequences [3, n]; arrays of this shape's sizes."""

    def told_step(self, inputs: StepInputs, kv_slab: Tensor) -> AttentionStep:
        """As decode_step, of a step with prompts in it; whatever comes out at tokens that belong to no sequence."""
