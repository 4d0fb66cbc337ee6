"""The encoder's own special thing: from compressed bytes to the pixels that the vision tower takes."""

from dataclasses import replace

import torch

from triptych.engine.encoder_jobs import MediaBytes
from triptych.errors import InvalidMedia
from triptych.journey import Item
from triptych.models.base import PreparedPixels
from triptych.models.card import ModelCard
from triptych.models.loading import load_image_processor
from triptych.multimodal.sniff import MediaHeader, sniff
from triptych.services.encoder.decoding import Decoder, OnThreads
from triptych.services.encoder.gpu_jpeg import GpuJpeg


class Preparer:
    """Decodes and resizes as the model's own image processor does, and believes no header.

    Called from several threads at once: neither the decoder nor the processor keeps anything between calls.
    """

    def __init__(self, card: ModelCard, gpu_jpeg: GpuJpeg | None = None, decoder: Decoder | None = None) -> None:
        """gpu_jpeg: decodes what it can of JPEG files, and has them resized on its device; None: the CPU does all

        decoder: of all other files, the caller's to close; None: the threads that call
        """
        self._processor = load_image_processor(card)
        self._gpu_jpeg = gpu_jpeg
        self._decoder = decoder or OnThreads()
        self.max_item_tokens = card.adapter.max_item_tokens
        self.max_item_rows = card.adapter.max_item_rows
        self.token_bytes = self._processor.rule.token_bytes

    def __call__(self, data: MediaBytes, item: Item) -> PreparedPixels:
        """The item's pixels, resized.

        Raises InvalidMedia, with the item's index, for an image that cannot be decoded, has another size than the item
        was planned with, or does not become its grid.
        """
        try:
            return self._prepare(bytes(data), item)
        except InvalidMedia as error:
            error.item_index = item.index
            raise

    def _prepare(self, data: bytes, item: Item) -> PreparedPixels:
        # The header first: an image that is not what was planned for is not worth decoding, and may be absurdly large.
        header = sniff(data)
        if (header.width, header.height) != (item.width, item.height):
            raise InvalidMedia(
                f"the image was announced as {item.width}x{item.height} pixels, "
                f"its header says {header.width}x{header.height}"
            )
        prepared = self._on_gpu(data, header, item) or self._on_cpu(data, header, item)
        # What the grid makes, not what the item says: the engine compares the two.
        return replace(prepared, rows=prepared.grid.patches * self.max_item_rows // self.max_item_tokens)

    def _on_cpu(self, data: bytes, header: MediaHeader, item: Item) -> PreparedPixels:
        with self._decoder.planes(data, header) as planes:
            picture = torch.from_numpy(planes)
            prepared = self._processor.resized(picture, item)
            if prepared.pixels.untyped_storage().data_ptr() != picture.untyped_storage().data_ptr():
                return prepared
            # It has its size already, and stands in memory that the decoder takes back.
            return replace(prepared, pixels=prepared.pixels.clone())

    def _on_gpu(self, data: bytes, header: MediaHeader, item: Item) -> PreparedPixels | None:
        """None where the CPU is to do it: there is no such GPU, the file is not for it, or it has no memory left."""
        if self._gpu_jpeg is None:
            return None
        try:
            with self._gpu_jpeg.stream():
                planes = self._gpu_jpeg.decode(data, header)
                return None if planes is None else self._processor.resized(planes, item)
        except torch.OutOfMemoryError:
            return None
