"""What lies under every picture: its size, its colours, the paper; and what the processor does to its pixels."""

from dataclasses import dataclass
from random import Random

import numpy as np
from PIL import Image, ImageDraw

from tools.tiny_vl.scenes import Picture

Colour = tuple[int, int, int]
Size = tuple[int, int]  # width, height in pixels

UNIT = 28  # pixels of a merged token
SMALLEST, LARGEST = 56, 448
MOST_ASPECT = 4
MIN_PIXELS, MAX_PIXELS = 3136, 12_845_056  # the processor's; no picture of ours comes near the second
LEAST_GAP = 70.0  # of luminance between ink and paper


@dataclass(frozen=True, slots=True)
class Inks:
    """Paper and ink; room is what shading may take from their gap of luminance."""

    paper: Colour
    ink: Colour

    @property
    def room(self) -> float:
        return abs(luminance(self.paper) - luminance(self.ink)) - LEAST_GAP - 2


def luminance(colour: Colour) -> float:
    return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]


def shifted(colour: Colour, step: float) -> Colour:
    """The colour with every channel moved by step, kept within 0–255."""
    red, green, blue = (min(255, max(0, round(channel + step))) for channel in colour)
    return red, green, blue


def pick_inks(rng: Random) -> Inks:
    """Black on white in one of five; else any two colours with enough between them."""
    if rng.random() < 0.2:
        return Inks((255, 255, 255), (0, 0, 0))
    while True:
        inks = Inks(_any_colour(rng), _any_colour(rng))
        if inks.room > 4:
            return inks


def contrasting(ink: Colour, rng: Random) -> Colour:
    """A colour on which the ink can be read."""
    while abs(luminance(colour := _any_colour(rng)) - luminance(ink)) <= LEAST_GAP:
        pass
    return colour


def _any_colour(rng: Random) -> Colour:
    draw = rng.random()
    if draw < 0.3:
        low, high = 185, 255
    elif draw < 0.6:
        low, high = 0, 90
    else:
        low, high = 0, 255
    return rng.randint(low, high), rng.randint(low, high), rng.randint(low, high)


def make_paper(size: Size, colour: Colour, room: float, rng: Random) -> Image.Image:
    """Paper that is plain, shaded from corner to corner or faintly lined; no channel strays further than room."""
    shading, lining = rng.random() < 0.4, rng.random() < 0.25
    share = room / 2 if shading and lining else room
    image = _shaded(size, colour, min(28.0, share), rng) if shading else Image.new("RGB", size, colour)
    if lining and share > 3:
        _line(image, colour, min(18.0, share), rng)
    return image


def _shaded(size: Size, colour: Colour, most: float, rng: Random) -> Image.Image:
    corners = bytes(channel for _ in range(4) for channel in shifted(colour, rng.uniform(-most, most)))
    # Four pixels blown up: every gradient one wants, at the speed of a resize. Bilinear keeps half a source pixel
    # flat at each edge, which is why the middle half is cut out.
    return Image.frombytes("RGB", (2, 2), corners).resize(size, Image.Resampling.BILINEAR, box=(0.5, 0.5, 1.5, 1.5))


def _line(image: Image.Image, colour: Colour, most: float, rng: Random) -> None:
    step, thick = rng.randint(7, 28), rng.randint(1, 5)
    tint = shifted(colour, rng.choice((-1, 1)) * rng.uniform(3, most))
    slant = rng.choice((0, 0, 1)) * rng.randint(10, 80)
    draw = ImageDraw.Draw(image)
    width, height = image.size
    if rng.random() < 0.5:
        for y in range(rng.randint(-slant, step), height + slant, step):
            draw.line((0, y, width, y - slant), fill=tint, width=thick)
    else:
        for x in range(rng.randint(-slant, step), width + slant, step):
            draw.line((x, 0, x - slant, height), fill=tint, width=thick)


def pick_noise(rng: Random) -> float:
    """Standard deviation of the noise to come: none in half of the pictures."""
    return 0.0 if rng.random() < 0.5 else rng.uniform(0, 20)


def pick_longest(rng: Random, largest: int) -> int:
    """How long this picture's sides may grow: 84–224 pixels, in one of twelve up to `largest`."""
    if rng.random() < 1 / 12 and largest > 224:
        return rng.randint(224, largest)
    return min(largest, round(rng.triangular(84, 224, 140)))


def pick_size(content: tuple[float, float], rng: Random, longest: int) -> Size:
    """A picture's size around content of that width and height: mostly close to it; half of them in whole tokens.

    Within 56–448 pixels and 4:1; beyond `longest` only where the content asks for it.
    """
    most = rng.choice((0.25, 0.6, 1.5)) if longest <= 224 else 4.0
    sides = [max(have, min(longest, have * (1 + rng.uniform(0, most)))) for have in content]
    return allowed(sides[0], sides[1], whole=rng.random() < 0.5)


def allowed(width: float, height: float, whole: bool) -> Size:
    """The nearest size, at least that large, that a picture may have; whole: in whole tokens."""
    unit = UNIT if whole else 1
    width, height = max(width, SMALLEST, height / MOST_ASPECT), max(height, SMALLEST, width / MOST_ASPECT)
    return min(LARGEST, _up(width, unit)), min(LARGEST, _up(height, unit))


def _up(length: float, unit: int) -> int:
    return -int(-length // unit) * unit


def processor_size(size: Size) -> Size:
    """Width and height to which Qwen2.5-VL's processor brings a picture (its smart_resize)."""
    width, height = (round(side / UNIT) * UNIT for side in size)
    if width * height < MIN_PIXELS:
        scale = (MIN_PIXELS / (size[0] * size[1])) ** 0.5
        width, height = _up(size[0] * scale, UNIT), _up(size[1] * scale, UNIT)
    if width * height > MAX_PIXELS:
        raise ValueError(f"a picture of {size[0]}×{size[1]} has more pixels than the {MAX_PIXELS} the processor leaves")
    return width, height


def processor_scale(size: Size) -> tuple[float, float]:
    """How many pixels each of the picture's becomes, across and down."""
    width, height = processor_size(size)
    return width / size[0], height / size[1]


def resize_like_processor(image: Image.Image) -> Image.Image:
    """The picture in the size that the tower sees; itself when it has that already."""
    size = processor_size(image.size)
    return image if size == image.size else image.resize(size, Image.Resampling.BICUBIC)


def with_noise(picture: Picture, rng: Random) -> Image.Image:
    """The picture's pixels under its Gaussian noise."""
    if not picture.noise:
        return picture.image
    pixels = np.asarray(picture.image, dtype=np.float32)
    grain = np.random.default_rng(rng.getrandbits(64)).standard_normal(pixels.shape, dtype=np.float32)
    return Image.fromarray(np.clip(pixels + grain * picture.noise + 0.5, 0, 255).astype(np.uint8))
