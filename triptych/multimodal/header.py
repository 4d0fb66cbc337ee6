"""What the first look at an image tells, and how every reader of a container says no."""

from dataclasses import dataclass
from typing import Literal

from triptych.errors import InvalidMedia

ImageFormat = Literal["jpeg", "png", "webp", "gif", "avif"]

# Segments, chunks or blocks read before an image is refused. Real files stay below a few thousand; without a limit a
# hostile one of empty pieces would keep the router busy for seconds.
MAX_PIECES = 1 << 16

_SIDEWAYS = range(5, 9)  # orientations that swap width and height


@dataclass(frozen=True, slots=True)
class MediaHeader:
    """Size and orientation of an image, read without decoding a pixel.

    width, height:         pixels after orientation: what the model sees
    raw_width, raw_height: pixels as they are stored
    orientation:           1 to 8 as in EXIF; 1 where nothing says otherwise
    frames_hint:           frames the header tells of, 1 for a still; 0 where only a walk over all data could tell (GIF)
    """

    format: ImageFormat
    width: int
    height: int
    raw_width: int
    raw_height: int
    orientation: int = 1
    frames_hint: int = 1

    @property
    def pixels(self) -> int:
        return self.raw_width * self.raw_height


def oriented_header(
    kind: ImageFormat, raw_width: int, raw_height: int, orientation: int = 1, frames_hint: int = 1
) -> MediaHeader:
    """A header whose width and height follow from its orientation. Raises InvalidMedia for an image without pixels."""
    if raw_width <= 0 or raw_height <= 0:
        raise InvalidMedia(f"the {kind.upper()} has no pixels: its header says {raw_width}x{raw_height}")
    width, height = (raw_height, raw_width) if orientation in _SIDEWAYS else (raw_width, raw_height)
    return MediaHeader(kind, width, height, raw_width, raw_height, orientation, frames_hint)


def corrupt(kind: ImageFormat, reason: str) -> InvalidMedia:
    """The error for a file that breaks its format's rules."""
    return InvalidMedia(f"the {kind.upper()} is corrupt: {reason}")


def truncated(kind: ImageFormat, where: str) -> InvalidMedia:
    """The error for a file that ends too early."""
    return InvalidMedia(f"the {kind.upper()} is truncated: it ends in {where}")


def unsupported(kind: ImageFormat, what: str) -> InvalidMedia:
    """The error for a sound file of a kind that is not decoded here."""
    return InvalidMedia(f"{kind.upper()} with {what} is not supported", code="unsupported_image_format")
