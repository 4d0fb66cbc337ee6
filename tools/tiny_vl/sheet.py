"""The contact sheet of sample pictures in the docs."""

from collections.abc import Callable
from pathlib import Path
from random import Random

from PIL import Image, ImageDraw

from tools.tiny_vl.draw import (
    arrange,
    draw_bar_chart,
    draw_blank,
    draw_figures,
    draw_letter_grid,
    draw_receipt,
    draw_sign,
    with_noise,
)
from tools.tiny_vl.fonts import FACES
from tools.tiny_vl.scenes import COLOURS, LOOK_ALIKE, SHAPES, UNAMBIGUOUS, BarChart, LetterGrid, Picture, Receipt

GRID_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
WIDTH, GAP, CAPTION = 1180, 10, 14  # pixels
WORDS = ("apple", "bread", "green", "tea", "milk", "jam", "cake", "soap", "rice", "egg")


def make_sheet(path: Path, seed: int = 8) -> None:
    """Writes a PNG of some forty pictures as training draws them, noise applied, each with its kind below it."""
    rng = Random(seed)
    tiles = [(name, with_noise(draw(rng), rng)) for name, draw, count in _KINDS for _ in range(count)]
    sheet = _laid_out(tiles)
    # Sixteen steps a channel: noise does not compress, and a palette would lose small figures' colours.
    sheet.point([round(value / 17) * 17 for value in range(256)] * 3).save(path, optimize=True)


def _laid_out(tiles: list[tuple[str, Image.Image]]) -> Image.Image:
    places, x, y, tallest = [], GAP, GAP, 0
    for _, image in tiles:
        if x + image.width + GAP > WIDTH:
            x, y, tallest = GAP, y + tallest + CAPTION + GAP, 0
        places.append((x, y))
        x, tallest = x + image.width + GAP, max(tallest, image.height)
    sheet = Image.new("RGB", (WIDTH, y + tallest + CAPTION + GAP), (204, 204, 204))
    draw, font = ImageDraw.Draw(sheet), FACES[0].sized(8)
    for (name, image), (x, y) in zip(tiles, places, strict=True):
        sheet.paste(image, (x, y))
        draw.text((x, y + image.height + 2), name, fill=(34, 34, 34), font=font)
    return sheet


def _text(rng: Random, alphabet: str, most: int) -> str:
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(1, most)))


def _figures(rng: Random, arrangement: str) -> Picture:
    count = 1 if arrangement == "single" else rng.randint(2, 5)
    names = [(rng.choice(SHAPES), rng.choice(COLOURS)) for _ in range(count)]
    return draw_figures(arrange(names, arrangement, rng), rng)


def _grid(rng: Random, dense: bool) -> Picture:
    rows, columns = rng.randint(2, 5), rng.randint(2, 6)
    letters = tuple("".join(rng.sample(GRID_LETTERS, columns)) for _ in range(rows))
    return draw_letter_grid(LetterGrid(letters, dense), rng, largest=224)


def _chart(rng: Random) -> Picture:
    heights = [1.0, 0.8, 0.6, 0.42, 0.25][: rng.randint(2, 5)]
    rng.shuffle(heights)
    return draw_bar_chart(BarChart(tuple(rng.sample(WORDS, len(heights))), tuple(heights)), rng)


def _receipt(rng: Random) -> Picture:
    items = tuple((word, rng.randint(10, 99) * 10) for word in rng.sample(WORDS, 2))
    return draw_receipt(Receipt(items), rng)


_KINDS: tuple[tuple[str, Callable[[Random], Picture], int], ...] = (
    ("sign", lambda rng: draw_sign(_text(rng, UNAMBIGUOUS, 10), rng.triangular(16, 70, 16), rng), 12),
    ("sign, small", lambda rng: draw_sign(_text(rng, UNAMBIGUOUS, 10), rng.uniform(10, 16), rng), 3),
    ("look-alikes", lambda rng: draw_sign(_text(rng, LOOK_ALIKE, 10), rng.triangular(16, 50, 16), rng), 3),
    ("held-out face", lambda rng: draw_sign(_text(rng, UNAMBIGUOUS, 8), rng.uniform(16, 40), rng, held_out=True), 4),
    ("single", lambda rng: _figures(rng, "single"), 4),
    ("row", lambda rng: _figures(rng, "row"), 4),
    ("column", lambda rng: _figures(rng, "column"), 3),
    ("scattered", lambda rng: _figures(rng, "scattered"), 6),
    ("dense grid", lambda rng: _grid(rng, dense=True), 3),
    ("loose grid", lambda rng: _grid(rng, dense=False), 2),
    ("bar chart", _chart, 4),
    ("receipt", _receipt, 4),
    ("blank", draw_blank, 2),
)
