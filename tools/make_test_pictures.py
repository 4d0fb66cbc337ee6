"""Draws the pictures in tests/data: python tools/make_test_pictures.py [OUTPUT_FOLDER].

Deterministic: fixed sizes and colours, Pillow's own font. Another FreeType release may move an edge pixel, so compare
with a small tolerance, and look at the answers in tests/data/questions.json before committing a new drawing.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parent.parent

Colour = tuple[int, int, int]
Point = tuple[float, float]

RED: Colour = (220, 40, 40)
GREEN: Colour = (30, 140, 60)
BLUE: Colour = (40, 60, 220)
PURPLE: Colour = (120, 50, 160)
PAPER: Colour = (250, 250, 250)


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


def _circle() -> list[Point]:
    return [(math.cos(math.tau * step / 180), math.sin(math.tau * step / 180)) for step in range(180)]


def _square() -> list[Point]:
    return [(-1, -1), (1, -1), (1, 1), (-1, 1)]


def _triangle() -> list[Point]:
    return [(0, -1), (1, 1), (-1, 1)]


def _diamond() -> list[Point]:
    return [(0, -1), (1, 0), (0, 1), (-1, 0)]


OUTLINES: Mapping[str, Callable[[], list[Point]]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "diamond": _diamond,
}

PICTURES: Mapping[str, Sign | Shapes] = {
    "sign-selfie.png": Sign("selfie", (140, 84), 52, (20, 30, 90), (245, 240, 225)),
    "sign-tea.png": Sign("TEA", (112, 56), 36, (255, 250, 220), (30, 110, 60)),
    "sign-bus.png": Sign("BUS", (112, 56), 36, (255, 255, 255), (200, 30, 30)),
    "sign-bread.png": Sign("BREAD", (168, 84), 48, (240, 240, 200), (12, 60, 90)),
    # Off the model's 28-pixel grid, so that it is resized, and a JPEG.
    "sign-cafe.jpg": Sign("CAFE", (150, 90), 47, (255, 255, 255), (200, 30, 30)),
    "red-circle.png": Shapes((112, 112), (Shape("circle", RED, (56, 56), 38),)),
    "two-shapes.png": Shapes((168, 112), (Shape("circle", RED, (40, 56), 28), Shape("square", BLUE, (124, 56), 28))),
    "tower.png": Shapes((112, 168), (Shape("triangle", GREEN, (56, 40), 28), Shape("diamond", PURPLE, (56, 124), 28))),
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
