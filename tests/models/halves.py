"""A tower cut in two makes the rows that it makes in one piece."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from triptych.journey import Grid
from triptych.models.qwen2_5_vl.lean_tower import LeanTower


def check_halves(tower: LeanTower, patches: Tensor, grids: Sequence[Grid]) -> None:
    """In the order of windows; the blocks leave their inputs as they are."""
    shape = tower.shape(grids)
    inputs = {each.name: each.tensor(shape.tokens) for each in tower.static_inputs}
    tower.prelude(patches, shape, inputs)
    before = {name: values.clone() for name, values in inputs.items()}
    bounds = [torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32) for lengths in shape.contexts]
    rows = tower.blocks(inputs, bounds, [int(lengths.max()) for lengths in shape.contexts])
    for name, values in inputs.items():
        assert torch.equal(values, before[name]), f"blocks wrote to {name}, which replays read again"
    torch.testing.assert_close(rows, tower.encode(patches, tuple(grids))[torch.from_numpy(shape.row_order)])
