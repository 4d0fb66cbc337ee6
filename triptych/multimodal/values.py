"""Arrays and images as values that can be named by a digest: what they are, whoever holds them.

A value is the same in NumPy and in torch, contiguous or not; what differs in type or shape is never the same, even
where the bytes are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from triptych.errors import InvalidRecord

# Names as in NumPy, and as in torch where NumPy has no such type.
ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
MOST_DIMENSIONS = 255

# RGBA holds these without loss. Of the others two different images may look the same in it, and would share a name.
IMAGE_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
_RGBA_BYTES = 4


@dataclass(frozen=True, slots=True)
class ArrayValue:
    """An array's numbers, and what makes numbers of its bytes.

    dtype:   a name of ITEM_BYTES
    payload: elements in C order, little-endian
    Raises InvalidRecord for an unknown dtype and for a payload of another size.
    """

    dtype: str
    shape: tuple[int, ...]
    payload: bytes

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise InvalidRecord(f"an array of {self.dtype} has no canonical encoding; known: {', '.join(ITEM_BYTES)}")
        if len(self.shape) > MOST_DIMENSIONS or min(self.shape, default=0) < 0:
            raise InvalidRecord(f"array has shape {self.shape}, expected up to {MOST_DIMENSIONS} sides, none negative")
        expected = math.prod(self.shape) * ITEM_BYTES[self.dtype]
        if len(self.payload) != expected:
            raise InvalidRecord(
                f"array of {self.dtype} {self.shape} has {len(self.payload)} bytes, expected {expected}"
            )


@dataclass(frozen=True, slots=True)
class ImageValue:
    """A decoded image.

    mode: Pillow's, one of IMAGE_MODES; images of different modes differ, whatever they look like
    rgba: [height, width, 4] bytes
    Raises InvalidRecord for another mode and for pixels of another size.
    """

    mode: str
    width: int
    height: int
    rgba: bytes

    def __post_init__(self) -> None:
        if self.mode not in IMAGE_MODES:
            raise InvalidRecord(f"an image of mode {self.mode} has no canonical encoding; known: {IMAGE_MODES}")
        expected = self.width * self.height * _RGBA_BYTES
        if min(self.width, self.height) < 0 or len(self.rgba) != expected:
            raise InvalidRecord(
                f"image of {self.width}x{self.height} pixels has {len(self.rgba)} bytes of RGBA, expected {expected}"
            )


class Raster(Protocol):
    """What is asked of a `PIL.Image.Image`; the library itself stays out of processes that never decode."""

    @property
    def mode(self) -> str: ...

    @property
    def size(self) -> tuple[int, int]: ...

    def convert(self, mode: str) -> Any: ...


def array_value(array: npt.NDArray[Any]) -> ArrayValue:
    """The value of a NumPy array of any strides and byte order; raises InvalidRecord for one that is not of numbers."""
    if isinstance(array, np.ma.MaskedArray):  # its bytes do not tell what is masked
        raise InvalidRecord("a masked array has no canonical encoding")
    little = array.astype(array.dtype.newbyteorder("<"), copy=False) if array.dtype.kind in "iufc" else array
    return ArrayValue(array.dtype.name, array.shape, little.tobytes())


def image_value(image: Raster) -> ImageValue:
    """The value of a Pillow image; raises InvalidRecord for a mode that RGBA cannot hold without loss."""
    if image.mode not in IMAGE_MODES:
        raise InvalidRecord(f"an image of mode {image.mode} has no canonical encoding; known: {IMAGE_MODES}")
    width, height = image.size
    return ImageValue(image.mode, width, height, image.convert("RGBA").tobytes())
