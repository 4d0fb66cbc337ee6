"""From resized pixels to the patches that a vision tower takes: on any device, to the last bit the image processor's.

The arithmetic and its order are those of transformers' torchvision backend (`rescale_and_normalize`, both steps in one)
and of Qwen2-VL's `patchify`. What is kept until the tower's batch comes is uint8: an eighth of the float32 patches, in
which a still picture fills two frames.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from triptych.errors import ConfigError, LayoutMismatch
from triptych.journey import Grid


@dataclass(frozen=True, slots=True, eq=False)
class PixelRule:
    """How a checkpoint's pixels become patches.

    mean, std: [3, 1, 1] float32, of samples from 0 to 255
    patch:     pixels per side of a patch
    merge:     patches per side of a block, the patches that become one row
    temporal:  frames that a patch spans; a still picture fills them all
    """

    mean: Tensor
    std: Tensor
    patch: int
    merge: int
    temporal: int

    @classmethod
    def of(cls, processor: Any) -> Self:
        """Of an image processor, as AutoImageProcessor makes it. Raises ConfigError naming what it would skip."""
        for name in ("do_rescale", "do_normalize"):
            if not getattr(processor, name):
                raise ConfigError(f"the image processor has {name} false, expected true")
        # As transformers multiplies them: in float32, by the factor's reciprocal.
        mean, std = (torch.tensor(each) * (1.0 / processor.rescale_factor) for each in _mean_and_std(processor))
        sizes = (processor.patch_size, processor.merge_size, processor.temporal_patch_size)
        return cls(mean.view(3, 1, 1), std.view(3, 1, 1), *sizes)

    @property
    def patch_numbers(self) -> int:
        return 3 * self.temporal * self.patch**2

    @property
    def token_bytes(self) -> int:
        """Of resized pixels, per patch."""
        return 3 * self.patch**2

    def to(self, device: torch.device) -> Self:
        """The same rule for pixels on a device."""
        return type(self)(self.mean.to(device), self.std.to(device), self.patch, self.merge, self.temporal)


def patches_of(pixels: Tensor, grid: Grid, rule: PixelRule, dtype: torch.dtype) -> Tensor:
    """Patches [patches, patch numbers], block by block, of pixels [3, height, width] uint8 on the device of the rule.

    Raises LayoutMismatch where the pixels are not those of the grid.
    """
    out = torch.empty(grid.patches, rule.patch_numbers, dtype=dtype, device=pixels.device)
    write_patches(pixels, grid, rule, out)
    return out


def write_patches(pixels: Tensor, grid: Grid, rule: PixelRule, out: Tensor) -> None:
    """As `patches_of`, into `out` [patches, patch numbers], rounded to its dtype. No host synchronisation."""
    wanted = (3, grid.h * rule.patch, grid.w * rule.patch)
    if grid.t != 1 or tuple(pixels.shape) != wanted or pixels.dtype != torch.uint8:
        raise LayoutMismatch(
            f"pixels are {tuple(pixels.shape)} of {pixels.dtype}, "
            f"expected {wanted} of torch.uint8 for one frame of {grid.t}x{grid.h}x{grid.w} patches"
        )
    side, merge = rule.patch, rule.merge
    down, across = grid.h // merge, grid.w // merge
    numbers = pixels.to(torch.float32).sub_(rule.mean).div_(rule.std)
    blocks = numbers.view(3, down, merge, side, across, merge, side).permute(1, 4, 2, 5, 0, 3, 6)
    out.view(down, across, merge, merge, 3, rule.temporal, side, side).copy_(blocks.unsqueeze(5))


def _mean_and_std(processor: Any) -> tuple[Any, Any]:
    for name in ("image_mean", "image_std"):
        if len(getattr(processor, name)) != 3:
            raise ConfigError(f"the image processor's {name} is {getattr(processor, name)!r}, expected 3 numbers")
    return processor.image_mean, processor.image_std
