"""The one fixed shape of all batches: samples of all sizes lie packed in it, one behind the other."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

PATCH_VALUES = 3 * 14 * 14
LONGEST_WINDOW, LONGEST_IMAGE, LONGEST_SEQUENCE = 64, 1024, 1024  # patches, patches, tokens
NO_LABEL, NO_KIND = -100, -1


@dataclass(frozen=True, slots=True)
class Caps:
    """How much a batch holds: the shapes of its tensors, whatever is in it. Four patches become one row."""

    patches: int = 98_304
    tokens: int = 71_680
    images: int = 2_304
    windows: int = 3_584
    sequences: int = 2_048
    labels: int = 10_240
    turns: int = 2_560

    def __post_init__(self) -> None:
        if self.patches % 4:
            raise ValueError(f"caps.patches is {self.patches}, expected a multiple of 4")
        for name, length, longest in (
            ("windows", self.patches, LONGEST_WINDOW),
            ("images", self.patches, LONGEST_IMAGE),
            ("sequences", self.tokens, LONGEST_SEQUENCE),
        ):
            if getattr(self, name) < pieces(length, longest):
                raise ValueError(
                    f"caps.{name} is {getattr(self, name)}, expected at least {pieces(length, longest)}: "
                    f"padding too is cut into segments of {longest}"
                )


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed samples; P, T ... are the fields of Caps by their first letters, R = P / 4 the rows, N the turns.

    The ends are cumulative lengths from 0 as variable-length attention takes them: the last of a kind is P (or T),
    unused trailing entries repeat it. What nothing fills is cut into segments no longer than LONGEST_*, so that
    attention writes every row and padding reads padding only.

    patches:       [P, 588] uint8, channel, y, x of 14x14 pixels; windows one after the other, in each of them
                   2x2 blocks in reading order: four neighbours in this order become one row
    noise:         [P] uint8, standard deviation in steps of 1/255 of the noise to add
    patch_at:      [P, 2] int32, line and column in the image's grid of patches, for the tower's rope
    window_ends:   [W + 1] int32, in patches
    image_ends:    [I + 1] int32, in patches
    row_slot:      [R] int32, the token whose place a row takes; T for padding and rows that are not handed over
    row_lost:      [R] bool, the language model gets zeros for it
    token_ids:     [T] int32
    token_at:      [3, T] int32, M-RoPE time, line, column
    sequence_ends: [S + 1] int32, in tokens
    label_at:      [L] int32, the token whose output predicts the label, one before it; 0 for padding
    label_id:      [L] int64, NO_LABEL for padding
    label_turn:    [L] int32, the turn in this batch that the label is of; N for padding
    turn_kind:     [N] int32, place of the turn's kind in the order of kinds, NO_KIND for padding
    """

    patches: Tensor
    noise: Tensor
    patch_at: Tensor
    window_ends: Tensor
    image_ends: Tensor
    row_slot: Tensor
    row_lost: Tensor
    token_ids: Tensor
    token_at: Tensor
    sequence_ends: Tensor
    label_at: Tensor
    label_id: Tensor
    label_turn: Tensor
    turn_kind: Tensor
    num_samples: int
    num_patches: int  # without padding, as the next two
    num_tokens: int
    num_labels: int

    def tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def copy(self) -> Self:
        """A copy with memory of its own."""
        return self._with(Tensor.clone)

    def to(self, device: torch.device | str) -> Self:
        """A copy on the device; it may still be under way for pinned tensors, as with non_blocking everywhere."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=True))

    def _with(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self.tensors().items()}
        return replace(self, **changed)


def pieces(length: int, longest: int) -> int:
    """How many segments of up to `longest` cover the length."""
    return -(-length // longest)
