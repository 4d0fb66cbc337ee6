"""Grids of letters, for questions that only positions answer."""

from random import Random
from typing import Literal, overload

from PIL import Image, ImageDraw, ImageFont

from tools.tiny_vl.draw_paper import (
    LARGEST,
    UNIT,
    Colour,
    Size,
    allowed,
    make_paper,
    pick_inks,
    pick_noise,
    processor_scale,
)
from tools.tiny_vl.fonts import FACES, Face, pick_face
from tools.tiny_vl.scenes import Handed, LetterGrid, Picture

JITTER = 3  # pixels
FITTING = 25.0  # pixels that the widest letter of a dense grid may have


@overload
def draw_letter_grid(
    grid: LetterGrid, rng: Random, held_out: bool = False, crop: Literal[False] = False, largest: int = LARGEST
) -> Picture: ...


@overload
def draw_letter_grid(
    grid: LetterGrid, rng: Random, held_out: bool = False, *, crop: Literal[True], largest: int = LARGEST
) -> tuple[Picture, LetterGrid]: ...


def draw_letter_grid(
    grid: LetterGrid, rng: Random, held_out: bool = False, crop: bool = False, largest: int = LARGEST
) -> Picture | tuple[Picture, LetterGrid]:
    """A picture of the grid; with crop (dense grids only), also the grid of those letters that are handed over.

    A cropped picture shows all letters, while its scene holds those only whose tokens `handed` picks: some rows and
    columns in any order.
    """
    if not grid.dense:
        if crop:
            raise ValueError("only a dense grid can be cropped: its rows and columns are those of the tokens")
        return _draw_loose(grid, rng, held_out, largest)
    offset = _offset(rng)
    picture = _draw_dense(grid, offset, rng, held_out)
    return _cropped(picture, grid, offset, rng) if crop else picture


def _offset(rng: Random) -> int:
    """How far down the first row of a dense grid starts, in pixels."""
    # Letters on the border of two rows of tokens: who reads them must know how the rows lie.
    return rng.randint(7, 21) if rng.random() < 0.75 else rng.randint(0, 27)


def _cropped(picture: Picture, grid: LetterGrid, offset: int, rng: Random) -> tuple[Picture, LetterGrid]:
    rows, columns = _some(len(grid.rows), rng), _some(len(grid.rows[0]), rng)
    rest = LetterGrid(tuple("".join(grid.rows[row][column] for column in columns) for row in rows), dense=True)
    # Of the two tokens that a letter lies in, the one with its middle: the tower has to put the whole letter there.
    below = int(offset > JITTER and offset >= UNIT // 2)
    handed = Handed(tuple(row + below for row in rows), columns)
    return Picture(picture.image, rest, picture.glyph_pixels, picture.noise, handed), rest


def _some(count: int, rng: Random) -> tuple[int, ...]:
    """Two or more of so many, in their order or in any."""
    picked = rng.sample(range(count), rng.randint(min(2, count), count))
    return tuple(sorted(picked) if rng.random() < 0.3 else picked)


def _draw_dense(grid: LetterGrid, offset: int, rng: Random, held_out: bool) -> Picture:
    rows, columns = len(grid.rows), len(grid.rows[0])
    face, cap = _narrow(grid, rng, held_out)
    size = (columns * UNIT, (rows + (offset > JITTER)) * UNIT)
    inks = pick_inks(rng)
    image = make_paper(size, inks.paper, inks.room, rng)
    _letter(image, grid, face.sized(cap), inks.ink, (UNIT / 2, UNIT / 2 + offset), (UNIT, UNIT), JITTER, rng)
    return Picture(image, grid, face.cap_height(cap), pick_noise(rng))


def _narrow(grid: LetterGrid, rng: Random, held_out: bool) -> tuple[Face, float]:
    """A face and size, capitals of 15–20 pixels, in which no letter of the grid reaches into the next column."""
    letters = set("".join(grid.rows))
    for _ in range(12):
        face, cap = pick_face(rng, held_out), rng.uniform(15, 20)
        share = max(_width(face.sized(cap), letter) for letter in letters) / cap
        cap = min(cap, FITTING / share)
        if cap >= 15:
            return face, cap
    return next(face for face in FACES if face.file == "DejaVuSansMono.ttf"), 16.0


def _width(font: ImageFont.FreeTypeFont, letter: str) -> float:
    left, _, right, _ = font.getbbox(letter)
    return right - left


def _draw_loose(grid: LetterGrid, rng: Random, held_out: bool, largest: int) -> Picture:
    rows, columns = len(grid.rows), len(grid.rows[0])
    face, cap = pick_face(rng, held_out), rng.uniform(15, 28)
    pitch = rng.triangular(30, 56, 32)
    most = max(30.0, min(56.0, (largest - 8) / max(rows, columns), (LARGEST - 8) / max(rows, columns)))
    across, down = min(most, pitch * rng.uniform(0.85, 1.15)), min(most, pitch * rng.uniform(0.85, 1.15))
    across, down = max(30.0, across), max(30.0, down)
    cap = _loose_cap(grid, face, min(cap, down - 12), across)
    size = _loose_size((across * columns + 4, down * rows + 4), rng, largest)
    cap /= min(1.0, processor_scale(size)[1])
    free = (size[0] - across * columns, size[1] - down * rows)
    origin = (rng.uniform(2, max(2.0, free[0] - 2)) + across / 2, rng.uniform(2, max(2.0, free[1] - 2)) + down / 2)
    inks = pick_inks(rng)
    image = make_paper(size, inks.paper, inks.room, rng)
    _letter(image, grid, face.sized(cap), inks.ink, origin, (across, down), 1, rng)
    return Picture(image, grid, face.cap_height(cap) * processor_scale(size)[1], pick_noise(rng))


def _loose_cap(grid: LetterGrid, face: Face, cap: float, across: float) -> float:
    widest = max(_width(face.sized(cap), letter) for letter in set("".join(grid.rows)))
    return max(15.0, cap * min(1.0, (across - 6) / widest))


def _loose_size(content: tuple[float, float], rng: Random, largest: int) -> Size:
    limits = (max(content[0], min(largest, content[0] * 1.25)), max(content[1], min(largest, content[1] * 1.25)))
    width, height = (rng.uniform(have, limit) for have, limit in zip(content, limits, strict=True))
    return allowed(width, height, whole=rng.random() < 0.5)


def _letter(
    image: Image.Image,
    grid: LetterGrid,
    font: ImageFont.FreeTypeFont,
    ink: Colour,
    first: tuple[float, float],  # middle of the first letter
    pitch: tuple[float, float],  # across, down
    jitter: int,
    rng: Random,
) -> None:
    draw = ImageDraw.Draw(image)
    _, top, _, bottom = font.getbbox("H")
    for row, letters in enumerate(grid.rows):
        for column, letter in enumerate(letters):
            left, _, right, _ = font.getbbox(letter)
            sway = max(0.0, min(jitter, (pitch[0] - 1 - (right - left)) / 2))
            x = first[0] + pitch[0] * column + rng.uniform(-sway, sway) - (left + right) / 2
            y = first[1] + pitch[1] * row + rng.uniform(-min(jitter, 2), min(jitter, 2)) - (top + bottom) / 2
            draw.text((round(x), round(y)), letter, fill=ink, font=font)
