"""JPEG files decoded on the GPU, where that is there and exactness is not asked for.

nvJPEG and libjpeg-turbo agree to a few steps of 256, not to the bit, and CUDA resizes with other roundings than the
CPU: what a model answers in float32 must not depend on either. In 16 bits the difference drowns in the dtype's own, so
there, and there alone, `auto` lets the GPU decode. Whatever is out of the ordinary is left to the CPU, which judges it.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from io import BytesIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from triptych.engine.device_errors import is_device_lost
from triptych.errors import ConfigError
from triptych.multimodal.header import MediaHeader
from triptych.multimodal.jpeg import coding, pixels_only

log = logging.getLogger(__name__)

_BASELINE, _PROGRESSIVE = 0xC0, 0xC2
_RGB_IDS = tuple(b"RGB")
_YCBCR = 1

# By orientation: axes flipped after what lies sideways (5 to 8) has been transposed. 1 is down, 2 across.
_FLIPPED: Mapping[int, tuple[int, ...]] = {2: (2,), 3: (1, 2), 4: (1,), 6: (2,), 7: (1, 2), 8: (1,)}

_PROBE_MAY_DIFFER = 4.0  # mean steps of 256 between its picture and Pillow's: a broken decoder is further off


class GpuJpeg:
    """Decodes plain JPEG files on a device. Safe to call from several threads, each of which has its own stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._of_thread = threading.local()

    @classmethod
    def probe(cls, device: torch.device) -> "GpuJpeg | None":
        """One that has decoded a known picture; None where this torchvision or this device cannot."""
        found = cls(device)
        picture = Image.linear_gradient("L").resize((48, 32)).convert("RGB")
        file = BytesIO()
        picture.save(file, "JPEG", quality=95)
        try:
            with found.stream():
                planes = found._decoded(file.getvalue()).cpu()
        except Exception as error:
            if is_device_lost(error):
                raise
            log.info("JPEG files are decoded on the CPU: %s", error)
            return None
        apart = np.abs(planes.permute(1, 2, 0).numpy().astype(int) - np.asarray(picture).astype(int)).mean()
        if apart > _PROBE_MAY_DIFFER:
            log.warning("JPEG files are decoded on the CPU: the GPU's picture is %.1f steps off on average", apart)
            return None
        return found

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Work on this thread's own stream; left only when the device has done it, so that any stream may read it."""
        if self._device.type != "cuda":
            yield
            return
        if not hasattr(self._of_thread, "stream"):
            self._of_thread.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._of_thread.stream):
            yield
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done.record()
            done.synchronize()

    def decode(self, data: bytes, header: MediaHeader) -> Tensor | None:
        """The picture [3, height, width] uint8 on the device, upright; call it inside `stream`.

        header: of `sniff`

        None for a file that is not decoded here, or not to its header's size: the CPU's to deal with. Raises only what
        tells of a broken device.
        """
        try:
            if header.format != "jpeg" or not is_plain(data):
                return None
            planes = self._decoded(pixels_only(data))
        except Exception as error:
            if is_device_lost(error):
                raise
            log.debug("a JPEG goes to the CPU: %s", error)
            return None
        if tuple(planes.shape) != (3, header.raw_height, header.raw_width):
            return None
        return upright(planes, header.orientation)

    def _decoded(self, data: bytes) -> Tensor:
        # bytes are read only, which torch would warn of
        file = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        planes: Tensor = decode_jpeg(file, ImageReadMode.RGB, self._device)
        return planes


def is_plain(data: bytes) -> bool:
    """Whether a JPEG is of the kinds that all decoders take alike: Huffman-coded, 8 bits, grey or YCbCr.

    Raises InvalidMedia for a file without sound headers.
    """
    found = coding(data)
    if found.frame not in (_BASELINE, _PROGRESSIVE) or found.precision != 8:
        return False
    if len(found.components) == 3:
        return found.components != _RGB_IDS and found.adobe_transform in (None, _YCBCR)
    return len(found.components) == 1


def upright(planes: Tensor, orientation: int) -> Tensor:
    """Planes [channels, height, width] turned as EXIF orientations 1 to 8 ask, as `canonical.to_rgb` turns pictures."""
    if orientation >= 5:
        planes = planes.transpose(1, 2)
    axes = _FLIPPED.get(orientation, ())
    return planes.flip(axes) if axes else planes


def choose_gpu_jpeg(setting: str, device: torch.device, dtype: torch.dtype) -> GpuJpeg | None:
    """What decodes JPEG files besides the CPU under `encoder.gpu_jpeg`, if anything.

    auto: where the tower is on CUDA and computes in 16 bits; on: in 32 bits too. Raises ConfigError for `on` where the
    GPU cannot.
    """
    if setting == "off" or (setting == "auto" and (device.type != "cuda" or dtype.itemsize != 2)):
        return None
    found = GpuJpeg.probe(device) if device.type == "cuda" else None
    if found is None and setting == "on":
        raise ConfigError(f"encoder.gpu_jpeg is on, and torchvision decodes no JPEG on {device}: expected auto or off")
    return found
