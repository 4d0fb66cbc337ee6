"""The encoder's own special thing: from compressed bytes to the patches that the vision tower takes."""

import torch

from triptych.engine.encoder_jobs import MediaBytes, PreparedItem
from triptych.errors import InvalidMedia, LayoutMismatch
from triptych.journey import Grid, Item
from triptych.models.card import ModelCard
from triptych.models.loading import load_image_processor
from triptych.multimodal.canonical import to_rgb
from triptych.multimodal.sniff import sniff


class Preparer:
    """Decodes, resizes and normalises as the model's own image processor does, and believes no header.

    Called from several threads at once: neither the decoder nor the processor keeps anything between calls.
    """

    def __init__(self, card: ModelCard) -> None:
        self._adapter = card.adapter
        self._processor = load_image_processor(card)
        self.max_item_tokens = card.adapter.max_item_tokens
        self.max_item_rows = card.adapter.max_item_rows

    def __call__(self, data: MediaBytes, item: Item) -> PreparedItem:
        """The item's patches in float32.

        Raises InvalidMedia for an image that cannot be decoded or has another size than the item was planned with,
        LayoutMismatch when the processor makes another grid of it; both name the item.
        """
        try:
            return self._prepare(bytes(data), item)
        except InvalidMedia as error:
            error.item_index = item.index
            raise

    def _prepare(self, data: bytes, item: Item) -> PreparedItem:
        # The header first: an image that is not what was planned for is not worth decoding, and may be absurdly large.
        header = sniff(data)
        _require_size("header", header.width, header.height, item)
        pixels = to_rgb(data, header)
        height, width = pixels.shape[:2]
        _require_size("decoded image", width, height, item)
        options = self._adapter.processor_options(width, height, item.grid)
        with torch.inference_mode():
            made = self._processor(images=[pixels], return_tensors="pt", **options)
        grid = Grid(*(int(side) for side in made["image_grid_thw"][0]))
        if grid != item.grid:
            raise LayoutMismatch(
                f"the image becomes {grid.t}x{grid.h}x{grid.w} patches, "
                f"its prompt is laid out for {item.grid.t}x{item.grid.h}x{item.grid.w}",
                item_index=item.index,
            )
        return PreparedItem(made["pixel_values"], grid, grid.patches * self.max_item_rows // self.max_item_tokens)


def _require_size(what: str, width: int, height: int, item: Item) -> None:
    if (width, height) != (item.width, item.height):
        raise InvalidMedia(
            f"the image was announced as {item.width}x{item.height} pixels, its {what} has {width}x{height}",
            item_index=item.index,
        )
