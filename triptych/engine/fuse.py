"""Encoder rows laid over the placeholders they were made for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triptych.engine.device import ship
from triptych.errors import LayoutMismatch
from triptych.journey import Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Overlay:
    """Rows of one item, and where in the step's tokens they go.

    rows: [n, levels * hidden]  level after level; level 0 is the embedding, the rest is added behind early layers
    at:   [n] int64 token indices
    """

    rows: Tensor
    at: Int64Array

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.at):
            raise LayoutMismatch(f"{len(self.rows)} rows came for {len(self.at)} placeholders")


def fuse(embeddings: Tensor, overlays: Sequence[Overlay], levels: int = 1) -> tuple[Tensor, Tensor | None]:
    """The step's embeddings [tokens, hidden] with these rows written over theirs, in place, and the deeper levels.

    These are [levels - 1, tokens, hidden], exactly 0 where no row is laid; None where nothing would be added at all.
    Rows of another dtype are cast. Raises LayoutMismatch for rows of another width than the levels make.
    """
    if not overlays:
        return embeddings, None
    tokens, hidden = embeddings.shape
    rows = join_rows(overlays)
    if rows.shape[1] != levels * hidden:
        raise LayoutMismatch(f"rows of {rows.shape[1]} numbers came, expected {levels} levels of {hidden}")
    at = overlays[0].at if len(overlays) == 1 else np.concatenate([overlay.at for overlay in overlays])
    index = ship(torch.from_numpy(at), embeddings.device)
    by_level = rows.to(embeddings.dtype).view(-1, levels, hidden)
    embeddings.index_copy_(0, index, by_level[:, 0])
    if levels == 1:
        return embeddings, None
    deeper = embeddings.new_zeros(levels - 1, tokens, hidden)
    return embeddings, deeper.index_copy_(1, index, by_level[:, 1:].transpose(0, 1))


def join_rows(overlays: Sequence[Overlay]) -> Tensor:
    """[n of all overlays, levels * hidden] in their order; a single overlay's rows themselves, not a copy."""
    return overlays[0].rows if len(overlays) == 1 else torch.cat([overlay.rows for overlay in overlays])
