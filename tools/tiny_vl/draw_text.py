"""Signs: a line of text in any face, size, colour, place and slight slant."""

from dataclasses import dataclass
from math import cos, radians, sin
from random import Random

from PIL import Image, ImageDraw, ImageFont

from tools.tiny_vl.draw_paper import (
    LARGEST,
    Inks,
    Size,
    allowed,
    contrasting,
    make_paper,
    pick_inks,
    pick_longest,
    pick_noise,
    pick_size,
    processor_scale,
)
from tools.tiny_vl.fonts import Face, pick_face
from tools.tiny_vl.scenes import Picture, Sign

READABLE = 17.0  # glyphs are not made smaller than this to fit, unless they were asked for smaller
MARGIN = 3  # pixels around the text
Box = tuple[int, int, int, int]  # left, top, right, bottom


@dataclass(frozen=True, slots=True)
class Line:
    """Text in a face, slanted by an angle in degrees, letters apart by a share of the capitals' height."""

    text: str
    face: Face
    angle: float
    tracking: float

    def extent(self, cap_pixels: float) -> tuple[float, float]:
        """Width and height of the room it needs, margin included."""
        font = self.face.sized(cap_pixels)
        left, top, right, bottom = font.getbbox(self.text)
        width, height = right - left + self.tracking * cap_pixels * (len(self.text) - 1) + 2, bottom - top + 2
        slant = radians(abs(self.angle))
        return (
            width * cos(slant) + height * sin(slant) + 2 * MARGIN,
            height * cos(slant) + width * sin(slant) + 2 * MARGIN,
        )

    def mask(self, cap_pixels: float) -> Image.Image:
        """Its ink: an "L" image just large enough."""
        font = self.face.sized(cap_pixels)
        gap = self.tracking * cap_pixels
        left, top, right, bottom = font.getbbox(self.text)
        size = (round(right - left + gap * (len(self.text) - 1)) + 2, round(bottom - top) + 2)
        mask = Image.new("L", size)
        draw = ImageDraw.Draw(mask)
        if gap:
            _draw_apart(draw, (1 - left, 1 - top), self.text, font, gap)
        else:
            draw.text((1 - left, 1 - top), self.text, fill=255, font=font)
        return mask.rotate(self.angle, Image.Resampling.BICUBIC, expand=True) if self.angle else mask


def draw_sign(text: str, glyph_pixels: float, rng: Random, held_out: bool = False, largest: int = LARGEST) -> Picture:
    """A picture of the text, its capitals glyph_pixels high after the processor's resize.

    Glyphs shrink (not below 17) before a picture grows beyond its usual size, and beyond `largest`;
    Picture.glyph_pixels has what came of it.
    """
    angle = rng.uniform(-7, 7) if rng.random() < 0.3 else 0.0
    tracking = rng.uniform(0.05, 0.3) if rng.random() < 0.15 else 0.0
    line = Line(text, pick_face(rng, held_out), angle, tracking)
    longest = pick_longest(rng, largest)
    glyph = _fitted(line, glyph_pixels, longest)
    size, cap = _sized(line, glyph, pick_size(line.extent(glyph), rng, longest))
    inks = pick_inks(rng)
    image = make_paper(size, inks.paper, inks.room, rng)
    mask = line.mask(cap)
    box = _place(image.size, mask.size, rng)
    decorated = rng.random()
    if decorated < 0.08:
        _draw_button(image, box, inks, rng)
    image.paste(inks.ink, box, mask)
    if decorated > 0.72:
        _decorate(image, box, inks, rng)
    drawn = line.face.cap_height(cap) * processor_scale(size)[1]
    return Picture(image, Sign(text), glyph_pixels=drawn, noise=pick_noise(rng))


def _fitted(line: Line, glyph: float, longest: int) -> float:
    """The glyph height, less where the text would be longer than `longest`."""
    least = min(glyph, READABLE)
    glyph = _coarse(glyph)
    while (over := max(line.extent(glyph)) / longest) > 1 and glyph > least:
        glyph = max(least, _coarse(glyph / over - 0.5))
    if over * longest > LARGEST:
        raise ValueError(f"{line.text!r} does not fit into {LARGEST} pixels with capitals of {glyph:.1f}")
    return glyph


def _coarse(glyph: float) -> float:
    """Large glyphs in few sizes only: fonts are dear to load, and a pixel more or less teaches nothing there."""
    return glyph if glyph < 30 else glyph // 2 * 2 if glyph < 50 else glyph // 4 * 4


def _sized(line: Line, glyph: float, size: Size) -> tuple[Size, float]:
    """Size and capitals' height to draw with, so that glyphs have their height after the processor's resize."""
    cap = _coarse(glyph / processor_scale(size)[1])
    width, height = line.extent(cap)
    if width <= size[0] and height <= size[1]:
        return size, cap
    # A picture in whole tokens isn't resized, so its text takes just the room that it was given.
    return allowed(size[0], size[1], whole=True), glyph


def _draw_apart(
    draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, font: ImageFont.FreeTypeFont, gap: float
) -> None:
    x, y = at
    for letter in text:
        draw.text((x, y), letter, fill=255, font=font)
        x += font.getlength(letter) + gap


def _place(paper: Size, text: Size, rng: Random) -> Box:
    """The box of the text, anywhere on the paper, in its middle every third time."""
    free = (paper[0] - text[0], paper[1] - text[1])
    if rng.random() < 0.33:
        left, top = free[0] // 2, free[1] // 2
    else:
        left, top = rng.randint(min(2, free[0] // 2), free[0]), rng.randint(min(2, free[1] // 2), free[1])
        left, top = min(left, free[0] - min(2, free[0] // 2)), min(top, free[1] - min(2, free[1] // 2))
    return left, top, left + text[0], top + text[1]


def _draw_button(image: Image.Image, box: Box, inks: Inks, rng: Random) -> None:
    """A rounded rectangle for the text to lie on: filled, outlined or both."""
    away, thick = rng.randint(3, 12), rng.randint(1, 3)
    left, top = max(1, box[0] - away), max(1, box[1] - away)
    right, bottom = min(image.width - 2, box[2] + away), min(image.height - 2, box[3] + away)
    sort = rng.random()
    fill = contrasting(inks.ink, rng) if sort < 0.8 else None
    outline = inks.ink if sort > 0.5 else None
    radius = min(rng.randint(2, 24), (bottom - top) // 2, (right - left) // 2)
    ImageDraw.Draw(image).rounded_rectangle((left, top, right, bottom), radius, fill, outline, thick)


def _decorate(image: Image.Image, box: Box, inks: Inks, rng: Random) -> None:
    """A frame or a line under the text, where there is room for it at a distance from the glyphs."""
    left, top, right, bottom = box
    thick, away = rng.randint(1, 3), rng.randint(5, 9)
    colour = inks.ink if rng.random() < 0.6 else (rng.randint(0, 255), rng.randint(0, 255), rng.randint(0, 255))
    draw = ImageDraw.Draw(image)
    if rng.random() < 0.5 and bottom + away + thick < image.height:
        draw.line((left, bottom + away, right, bottom + away), fill=colour, width=thick)
    elif (room := min(left, top, image.width - right, image.height - bottom) - thick - 3) > 1:
        inset = rng.randint(4, min(14, room)) if room >= 4 and rng.random() < 0.75 else rng.randint(0, 1)
        draw.rectangle((inset, inset, image.width - 1 - inset, image.height - 1 - inset), outline=colour, width=thick)
