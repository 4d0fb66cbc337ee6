"""Canonical RGB to the pixels a vision tower takes: resized by the checkpoint's own image processor.

What follows the resizing (pixels.py) is left to the tower, on its device.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AutoImageProcessor
from transformers.image_utils import SizeDict

from triptych.errors import ConfigError, InvalidMedia
from triptych.journey import Grid, Item
from triptych.models.adapter import Adapter
from triptych.models.base import PreparedPixels
from triptych.models.card import ModelCard
from triptych.models.pixels import PixelRule


class ImageProcessor:
    """A checkpoint's image processor. Safe to call from several threads."""

    def __init__(self, processor: Any, adapter: Adapter) -> None:
        """processor: transformers' own, as AutoImageProcessor makes it"""
        self._processor = processor
        self._adapter = adapter
        self.rule = PixelRule.of(processor)
        self.max_item_tokens = adapter.max_item_tokens
        self.max_item_rows = adapter.max_item_rows

    def pixels(self, rgb: npt.NDArray[np.uint8], item: Item) -> PreparedPixels:
        """Canonical RGB [height, width, 3], resized; its patches equal the processor's own to the last bit.

        Raises InvalidMedia where the image is not of the size, or does not become the grid, that the item tells of.
        """
        # As a tensor with its channels first there is nothing to guess: a picture three pixels high stays one.
        return self.resized(torch.from_numpy(np.ascontiguousarray(rgb.transpose(2, 0, 1))), item)

    def resized(self, planes: Tensor, item: Item) -> PreparedPixels:
        """As `pixels`, of planes [3, height, width] uint8 on any device, where the result is too.

        Another device rounds otherwise: only on the CPU is the result the processor's own.
        """
        try:
            return self._resized(planes, item)
        except InvalidMedia as error:
            error.item_index = item.index
            raise

    def _resized(self, planes: Tensor, item: Item) -> PreparedPixels:
        height, width = planes.shape[1:]
        if (width, height) != (item.width, item.height):
            raise InvalidMedia(f"the image is {width}x{height} pixels, its header says {item.width}x{item.height}")
        options = self._adapter.processor_options(width, height, item.grid)
        pixels = self._processor.resize(
            images=planes[None],  # a batch of one, as the processor itself would have it
            size=SizeDict(**options["size"]),
            resample=self._processor.resample,
            factor=self.rule.patch * self.rule.merge,
        )[0]
        grid = Grid(1, pixels.shape[1] // self.rule.patch, pixels.shape[2] // self.rule.patch)
        if grid != item.grid:
            raise InvalidMedia(
                f"the image processor makes {grid.t}x{grid.h}x{grid.w} patches, "
                f"planned were {item.grid.t}x{item.grid.h}x{item.grid.w}"
            )
        return PreparedPixels(pixels=pixels.contiguous(), grid=grid, rows=item.rows)


def load_image_processor(card: ModelCard) -> ImageProcessor:
    """The image processor of the card's folder; ConfigError where transformers cannot make one of it."""
    try:
        processor = AutoImageProcessor.from_pretrained(card.folder, local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"no image processor in {card.folder}: {error}") from error
    return ImageProcessor(processor, card.adapter)
