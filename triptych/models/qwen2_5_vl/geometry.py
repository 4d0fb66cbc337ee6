"""How Qwen2.5-VL fits images to patches: from a size to its grid, and from a grid back to the limits that made it.

An image is scaled so that each side is a whole number of cells (the pixels of one embedding row) and the area lies
within limits; the arithmetic is that of the family's image processor to the last rounding, since both must agree on
every size. No torch, no pixels.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from triptych.errors import InvalidMedia

LARGEST_ASPECT_RATIO = 200


@dataclass(frozen=True, slots=True)
class PixelLimits:
    """The area, in pixels, that an image is scaled into if its own, rounded to whole cells, lies outside."""

    smallest: int
    largest: int


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows and columns of embedding rows."""

    h: int
    w: int

    @property
    def count(self) -> int:
        return self.h * self.w


def fit(width: int, height: int, cell: int, limits: PixelLimits) -> Cells:
    """The cells an image of this size (pixels) is scaled to; `cell` is the side of one in pixels.

    Raises InvalidMedia for an empty image and for an aspect ratio above 200.
    """
    if min(width, height) < 1:
        raise InvalidMedia(f"the image has {width}x{height} pixels")
    if max(width, height) / min(width, height) > LARGEST_ASPECT_RATIO:
        raise InvalidMedia(
            f"the image has {width}x{height} pixels; this model takes aspect ratios up to {LARGEST_ASPECT_RATIO}"
        )
    rounded = _rounded(width, height, cell)
    pixels = rounded.count * cell**2
    if pixels > limits.largest:
        shrink = math.sqrt((height * width) / limits.largest)
        return Cells(max(1, math.floor(height / shrink / cell)), max(1, math.floor(width / shrink / cell)))
    if pixels < limits.smallest:
        grow = math.sqrt(limits.smallest / (height * width))
        return Cells(math.ceil(height * grow / cell), math.ceil(width * grow / cell))
    return rounded


def most_cells(cell: int, limits: PixelLimits) -> int:
    """No image is scaled to more cells than this under these limits."""
    inside = limits.largest // cell**2
    # A thin image scaled down stays one cell across, and may so exceed the limit along.
    thin = math.isqrt(limits.largest * LARGEST_ASPECT_RATIO) // cell
    # Scaling up rounds both sides up; the thinnest image gains most by it.
    along, across = math.sqrt(limits.smallest * LARGEST_ASPECT_RATIO), math.sqrt(limits.smallest / LARGEST_ASPECT_RATIO)
    grown = math.floor((along / cell + 1) * (across / cell + 1))
    return max(inside, thin, grown)


def limits_leading_to(wanted: Cells, width: int, height: int, cell: int) -> PixelLimits | None:
    """Limits under which `fit` makes `wanted` of an image of this size; None where there are none.

    What an encoder is told is the grid; the limits that a client chose stay at the router.
    """
    for limits in _candidates(wanted, width, height, cell):
        if fit(width, height, cell, limits) == wanted:
            return limits
    return None


def _candidates(wanted: Cells, width: int, height: int, cell: int) -> Iterator[PixelLimits]:
    yield PixelLimits(wanted.count * cell**2, wanted.count * cell**2)
    # Solved exactly for the area at which each side, scaled and rounded, comes out as wanted. The middle of the
    # interval is safe from floating-point rounding; its ends, and what lies just outside, matter when it is narrow.
    sides = ((wanted.h, Fraction(width, height)), (wanted.w, Fraction(height, width)))
    above = max(((side - 1) * cell) ** 2 * ratio for side, ratio in sides)
    up_to = min((side * cell) ** 2 * ratio for side, ratio in sides)
    for pixels in _between(math.floor(above) + 1, math.floor(up_to)):
        yield PixelLimits(smallest=pixels, largest=max(pixels, _rounded(width, height, cell).count * cell**2))
    start = max(0 if side == 1 else (side * cell) ** 2 * ratio for side, ratio in sides)
    below = min(((side + 1) * cell) ** 2 * ratio for side, ratio in sides)
    for pixels in _between(math.ceil(start), math.ceil(below) - 1):
        yield PixelLimits(smallest=1, largest=pixels)


def _between(low: int, high: int) -> tuple[int, ...]:
    return tuple(pixels for pixels in ((low + high) // 2, low, high, low - 1, high + 1) if pixels >= 1)


def _rounded(width: int, height: int, cell: int) -> Cells:
    return Cells(round(height / cell), round(width / cell))
