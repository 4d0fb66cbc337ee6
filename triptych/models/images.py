"""Canonical RGB to patches: the checkpoint's own image processor, held to the grid that the router planned."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoImageProcessor

from triptych.errors import ConfigError, InvalidMedia
from triptych.journey import Grid, Item
from triptych.models.adapter import Adapter
from triptych.models.base import PreparedItem
from triptych.models.card import ModelCard


class ImageProcessor:
    """A checkpoint's image processor. Safe to call from several threads."""

    def __init__(self, processor: Any, adapter: Adapter) -> None:
        """processor: transformers' own, as AutoImageProcessor makes it"""
        self._processor = processor
        self._adapter = adapter
        self.max_item_tokens = adapter.max_item_tokens
        self.max_item_rows = adapter.max_item_rows

    def prepare(self, rgb: npt.NDArray[np.uint8], item: Item) -> PreparedItem:
        """Patches of canonical RGB [height, width, 3], equal to the processor's own to the last bit.

        Raises InvalidMedia where the image is not of the size, or does not become the grid, that the item tells of.
        """
        try:
            return self._prepare(rgb, item)
        except InvalidMedia as error:
            error.item_index = item.index
            raise

    def _prepare(self, rgb: npt.NDArray[np.uint8], item: Item) -> PreparedItem:
        height, width = rgb.shape[:2]
        if (width, height) != (item.width, item.height):
            raise InvalidMedia(f"the image is {width}x{height} pixels, its header says {item.width}x{item.height}")
        options = self._adapter.processor_options(width, height, item.grid)
        # As a tensor with its channels first there is nothing to guess: a picture three pixels high stays one.
        pixels = torch.from_numpy(np.ascontiguousarray(rgb.transpose(2, 0, 1)))
        made = self._processor(images=[pixels], return_tensors="pt", input_data_format="channels_first", **options)
        grid = Grid(*made["image_grid_thw"][0].tolist())
        if grid != item.grid:
            raise InvalidMedia(
                f"the image processor makes {grid.t}x{grid.h}x{grid.w} patches, "
                f"planned were {item.grid.t}x{item.grid.h}x{item.grid.w}"
            )
        return PreparedItem(patches=made["pixel_values"], grid=grid, rows=item.rows)


def load_image_processor(card: ModelCard) -> ImageProcessor:
    """The image processor of the card's folder; ConfigError where transformers cannot make one of it."""
    try:
        processor = AutoImageProcessor.from_pretrained(card.folder, local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"no image processor in {card.folder}: {error}") from error
    return ImageProcessor(processor, card.adapter)
