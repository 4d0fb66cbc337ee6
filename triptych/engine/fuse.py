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

    rows: [n, hidden]
    at:   [n] int64 token indices
    """

    rows: Tensor
    at: Int64Array

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.at):
            raise LayoutMismatch(f"{len(self.rows)} rows came for {len(self.at)} placeholders")


def fuse(embeddings: Tensor, overlays: Sequence[Overlay]) -> Tensor:
    """The step's embeddings [tokens, hidden] with these rows written over theirs, in place."""
    if not overlays:
        return embeddings
    rows = overlays[0].rows if len(overlays) == 1 else torch.cat([overlay.rows for overlay in overlays])
    at = np.concatenate([overlay.at for overlay in overlays])
    return embeddings.index_copy_(0, ship(torch.from_numpy(at), embeddings.device), rows.to(embeddings.dtype))
