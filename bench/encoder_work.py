"""What bench/encoder.py has encoded: towers by their numbers, image sizes, and the arithmetic that they come to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triptych.journey import Grid, Item, Modality, Run
from triptych.models.qwen2_5_vl.adapter import Qwen25VLAdapter
from triptych.models.qwen2_5_vl.geometry import PixelLimits

# vision_config of Qwen/Qwen2.5-VL-7B-Instruct
QWEN_7B: Mapping[str, Any] = {
    "depth": 32,
    "hidden_size": 1280,
    "num_heads": 16,
    "intermediate_size": 3420,
    "out_hidden_size": 3584,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
# The same shape of tower, for a dry run on a CPU.
TINY: Mapping[str, Any] = {
    **QWEN_7B,
    "depth": 4,
    "hidden_size": 96,
    "num_heads": 4,
    "intermediate_size": 100,
    "out_hidden_size": 64,
    "fullatt_block_indexes": [1, 3],
}
# Of the same checkpoint: from 4 to 16,384 embedding rows.
ADAPTER = Qwen25VLAdapter(14, 2, PixelLimits(4 * 28**2, 16_384 * 28**2), 0, window_size=112)


@dataclass(frozen=True, slots=True)
class Workload:
    """Images of one size, and how many are encoded at once where they are packed."""

    width: int
    height: int
    pack: int

    @property
    def name(self) -> str:
        return f"{self.width}x{self.height}, {self.pack} images"

    @property
    def grid(self) -> Grid:
        return ADAPTER.plan(self.width, self.height, {}).grid

    def item(self) -> Item:
        plan = ADAPTER.plan(self.width, self.height, {})
        run = Run(0, plan.rows)
        sizes = (self.width, self.height, plan.grid, plan.encoder_tokens, plan.rows)
        return Item(0, bytes(32), Modality.IMAGE, *sizes, (run,), run, 0)


# 16,384 patches are the default budget of a batch, 16 images its other one; 8 images of 1280x720 need a larger one.
WORKLOADS = (Workload(448, 448, 16), Workload(1280, 720, 3), Workload(1280, 720, 8), Workload(3840, 2160, 2))
QUICK_WORKLOADS = (Workload(56, 56, 3), Workload(112, 84, 2))


def flops(config: Mapping[str, Any], grid: Grid) -> int:
    """Floating point operations of one image, two for each multiplication and addition of a matrix product; unpadded.

    With T patches, hidden width H, MLP width M, patches of P numbers, 2x2 patches to a row and rows of O numbers:

        projection      2 T P H
        each layer      2 T (3 H H + H H + 3 H M)    queries, keys, values; output; gate, up, down
                        4 H (sum of L squared)       scores and their product with the values, over the contexts of L
                                                     patches each: the frame in full layers, windows in the others
        merger          2 T/4 (4H 4H + 4H O)

    Norms, rotary embedding, softmax and activations are left out, as is whatever an implementation pads.
    """
    hidden, tokens = int(config["hidden_size"]), grid.patches
    block = int(config["spatial_merge_size"]) ** 2
    patch_numbers = 3 * int(config["temporal_patch_size"]) * int(config["patch_size"]) ** 2
    full = len(config["fullatt_block_indexes"])
    layers = {"frames": full, "windows": int(config["depth"]) - full}
    attention = sum(
        layers[kind] * 4 * hidden * sum(length**2 for length in lengths)
        for kind, lengths in ADAPTER.contexts(grid).items()
    )
    products = 2 * tokens * (4 * hidden**2 + 3 * hidden * int(config["intermediate_size"]))
    wide = block * hidden
    merger = 2 * (tokens // block) * (wide**2 + wide * int(config["out_hidden_size"]))
    return 2 * tokens * patch_numbers * hidden + int(config["depth"]) * products + attention + merger
