"""Draws the pictures in tests/data: python tools/make_test_pictures.py [OUTPUT_FOLDER].

Deterministic: fixed sizes and colours, Pillow's own font. Another FreeType release may move an edge pixel, so compare
with a small tolerance, and look at the answers in tests/data/questions.json before committing a new drawing.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parent.parent

Colour = tuple[int, int, int]
Point = tuple[float, float]

RED: Colour = (220, 40, 40)
GREEN: Colour = (30, 140, 60)
BLUE: Colour = (40, 60, 220)
PURPLE: Colour = (120, 50, 160)
YELLOW: Colour = (250, 220, 30)
INK: Colour = (25, 25, 35)
PAPER: Colour = (250, 250, 250)


class Picture(Protocol):
    """What can be drawn."""

    def draw(self) -> Image.Image: ...


@dataclass(frozen=True, slots=True)
class Sign:
    """One word in the middle of a plain board."""

    word: str
    size: tuple[int, int]  # width, height in pixels
    font_pixels: int
    ink: Colour
    board: Colour

    def draw(self) -> Image.Image:
        image = Image.new("RGB", self.size, self.board)
        middle = (self.size[0] / 2, self.size[1] / 2)
        font = ImageFont.load_default(self.font_pixels)
        ImageDraw.Draw(image).text(middle, self.word, fill=self.ink, font=font, anchor="mm")
        return image


@dataclass(frozen=True, slots=True)
class Shape:
    """A filled outline around a centre; the radius reaches its furthest point or half its side."""

    outline: str  # one of OUTLINES
    colour: Colour
    centre: Point
    radius: float


@dataclass(frozen=True, slots=True)
class Shapes:
    """Shapes on white paper."""

    size: tuple[int, int]
    shapes: tuple[Shape, ...]

    def draw(self) -> Image.Image:
        image = Image.new("RGB", self.size, PAPER)
        canvas = ImageDraw.Draw(image)
        for shape in self.shapes:
            x, y = shape.centre
            corners = [(x + shape.radius * dx, y + shape.radius * dy) for dx, dy in OUTLINES[shape.outline]()]
            canvas.polygon(corners, fill=shape.colour)
        return image


@dataclass(frozen=True, slots=True)
class Letters:
    """Rows of letters, evenly spread over white paper."""

    size: tuple[int, int]
    rows: tuple[str, ...]
    font_pixels: int

    def draw(self) -> Image.Image:
        image = Image.new("RGB", self.size, PAPER)
        canvas, font = ImageDraw.Draw(image), ImageFont.load_default(self.font_pixels)
        down = self.size[1] / len(self.rows)
        for row, letters in enumerate(self.rows):
            across = self.size[0] / len(letters)
            for column, letter in enumerate(letters):
                middle = (across * (column + 0.5), down * (row + 0.5))
                canvas.text(middle, letter, fill=INK, font=font, anchor="mm")
        return image


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars on a line, their labels below it."""

    size: tuple[int, int]
    bars: tuple[tuple[str, int], ...]  # label, height in pixels
    font_pixels: int
    colour: Colour

    def draw(self) -> Image.Image:
        width, height = self.size
        image = Image.new("RGB", self.size, PAPER)
        canvas, font = ImageDraw.Draw(image), ImageFont.load_default(self.font_pixels)
        floor, pitch = height - self.font_pixels - 8, width / len(self.bars)
        for place, (label, tall) in enumerate(self.bars):
            middle = pitch * (place + 0.5)
            canvas.rectangle((middle - pitch * 0.3, floor - tall, middle + pitch * 0.3, floor), fill=self.colour)
            canvas.text((middle, floor + 4), label, fill=INK, font=font, anchor="mt")
        canvas.line((4, floor, width - 5, floor), fill=INK, width=2)
        return image


@dataclass(frozen=True, slots=True)
class Receipt:
    """Names on the left, prices on the right, the last line the total."""

    size: tuple[int, int]
    lines: tuple[tuple[str, str], ...]
    font_pixels: int

    def draw(self) -> Image.Image:
        width, height = self.size
        image = Image.new("RGB", self.size, PAPER)
        canvas, font = ImageDraw.Draw(image), ImageFont.load_default(self.font_pixels)
        lead = height / len(self.lines)
        for place, (name, price) in enumerate(self.lines):
            middle = lead * (place + 0.5)
            canvas.text((10, middle), name, fill=INK, font=font, anchor="lm")
            canvas.text((width - 10, middle), price, fill=INK, font=font, anchor="rm")
        return image


def _circle() -> list[Point]:
    return [(math.cos(math.tau * step / 180), math.sin(math.tau * step / 180)) for step in range(180)]


def _square() -> list[Point]:
    return [(-1, -1), (1, -1), (1, 1), (-1, 1)]


def _triangle() -> list[Point]:
    return [(0, -1), (1, 1), (-1, 1)]


def _diamond() -> list[Point]:
    return [(0, -1), (1, 0), (0, 1), (-1, 0)]


def _star() -> list[Point]:
    turns = [(math.pi / 5 * step, 0.45 if step % 2 else 1.0) for step in range(10)]
    return [(reach * math.sin(angle), -reach * math.cos(angle)) for angle, reach in turns]


OUTLINES: Mapping[str, Callable[[], list[Point]]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "diamond": _diamond,
    "star": _star,
}

PICTURES: Mapping[str, Picture] = {
    "sign-selfie.png": Sign("selfie", (140, 84), 52, (20, 30, 90), (245, 240, 225)),
    "sign-tea.png": Sign("TEA", (112, 56), 36, (255, 250, 220), (30, 110, 60)),
    "sign-bus.png": Sign("BUS", (112, 56), 36, (255, 255, 255), (200, 30, 30)),
    "sign-bread.png": Sign("BREAD", (168, 84), 48, (240, 240, 200), (12, 60, 90)),
    # Off the model's 28-pixel grid, so that it is resized, and a JPEG.
    "sign-cafe.jpg": Sign("CAFE", (150, 90), 47, (255, 255, 255), (200, 30, 30)),
    # Says what sign-tea.png says, and looks another way.
    "sign-tea-white.png": Sign("TEA", (140, 84), 50, (150, 30, 110), (250, 250, 250)),
    "red-circle.png": Shapes((112, 112), (Shape("circle", RED, (56, 56), 38),)),
    "two-shapes.png": Shapes((168, 112), (Shape("circle", RED, (40, 56), 28), Shape("square", BLUE, (124, 56), 28))),
    # The same two shapes and colours, the other way round: only who knows which belongs to which can tell.
    "two-shapes-other.png": Shapes(
        (168, 112), (Shape("circle", BLUE, (40, 56), 28), Shape("square", RED, (124, 56), 28))
    ),
    "three-shapes.png": Shapes(
        (168, 168),
        (
            Shape("star", YELLOW, (44, 48), 32),
            Shape("circle", PURPLE, (122, 60), 28),
            Shape("triangle", GREEN, (76, 128), 28),
        ),
    ),
    "tower.png": Shapes((112, 168), (Shape("triangle", GREEN, (56, 40), 28), Shape("diamond", PURPLE, (56, 124), 28))),
    "letters.png": Letters((168, 140), ("K7XA", "4BRT", "HZ2M"), 30),
    "chart.png": BarChart((196, 140), (("TEA", 48), ("MILK", 70), ("EGG", 96), ("JAM", 28)), 18, BLUE),
    "receipt.png": Receipt((168, 112), (("TEA", "2.50"), ("CAKE", "3.40"), ("TOTAL", "5.90")), 24),
}


def draw_all(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in PICTURES.items():
        image = picture.draw()
        if name.endswith(".jpg"):
            image.save(folder / name, quality=92)
        else:
            image.save(folder / name, optimize=True)


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests" / "data")
