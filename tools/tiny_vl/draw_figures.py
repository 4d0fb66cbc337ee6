"""Coloured shapes: where they stand, how they look."""

from colorsys import hsv_to_rgb
from functools import lru_cache
from math import cos, hypot, pi, radians, sin
from random import Random

from PIL import Image, ImageDraw

from tools.tiny_vl.draw_paper import (
    LARGEST,
    Colour,
    Size,
    allowed,
    make_paper,
    pick_longest,
    pick_noise,
    processor_scale,
)
from tools.tiny_vl.scenes import Figure, Figures, Picture

Points = tuple[tuple[float, float], ...]

LEAST_RADIUS = 11.0  # pixels after the processor's resize
SMOOTHING = 3  # drawn that many times larger, then averaged

# Hue in degrees, saturation and value of each colour, from–to: narrow enough that no two come near each other.
HSV: dict[str, tuple[tuple[float, float], tuple[float, float], tuple[float, float]]] = {
    "red": ((-6, 5), (0.85, 1.0), (0.75, 1.0)),
    "green": ((110, 145), (0.6, 1.0), (0.45, 0.8)),
    "blue": ((212, 238), (0.75, 1.0), (0.65, 1.0)),
    "yellow": ((52, 60), (0.75, 1.0), (0.93, 1.0)),
    "orange": ((25, 35), (0.88, 1.0), (0.93, 1.0)),
    "purple": ((272, 288), (0.6, 0.95), (0.45, 0.75)),
    "pink": ((325, 345), (0.3, 0.5), (0.95, 1.0)),
    "black": ((0, 360), (0.0, 0.3), (0.0, 0.12)),
    "white": ((0, 360), (0.0, 0.04), (0.94, 1.0)),
}
LEAST_DISTANCE = 110.0  # between paper and figures, in RGB
SLANT = {"circle": 90.0, "ring": 90.0, "triangle": 14.0, "star": 36.0, "square": 9.0, "cross": 9.0, "diamond": 9.0}


def arrange(names: list[tuple[str, str]], arrangement: str, rng: Random) -> Figures:
    """Figures of those (shape, colour) names, placed; see Figures for what each arrangement promises."""
    if arrangement == "single":
        places = [(rng.uniform(0.3, 0.7), rng.uniform(0.3, 0.7))]
    elif arrangement == "row":
        places = _in_line(len(names), rng)
    elif arrangement == "column":
        places = [(across, along) for along, across in _in_line(len(names), rng)]
    elif arrangement == "scattered":
        places = _scattered(len(names), rng)
    else:
        raise ValueError(f"arrangement is {arrangement!r}, expected single, row, column or scattered")
    figures = tuple(Figure(shape, colour, x, y) for (shape, colour), (x, y) in zip(names, places, strict=True))
    return Figures(figures, arrangement)


def _in_line(count: int, rng: Random) -> list[tuple[float, float]]:
    """(along, across) as shares; neighbours are at least four times as far apart along as across."""
    pitch = rng.uniform(0.82, 1.0) / count
    start = rng.uniform(0, 1 - pitch * count) + pitch / 2
    middle, sway = rng.uniform(0.35, 0.65), 0.08 * pitch
    return [
        (start + pitch * (place + rng.uniform(-0.12, 0.12)), middle + rng.uniform(-sway, sway) * (1 + count / 2))
        for place in range(count)
    ]


def _scattered(count: int, rng: Random) -> list[tuple[float, float]]:
    columns = rng.choice([n for n in (1, 2, 3) if -(-count // n) <= 4 and n <= count])
    rows = max(2, -(-count // columns) + (rng.random() < 0.3))
    columns = max(2, columns)
    cells = rng.sample(range(columns * rows), count)
    return [
        ((cell % columns + 0.5 + rng.uniform(-0.22, 0.22)) / columns,
         (cell // columns + 0.5 + rng.uniform(-0.22, 0.22)) / rows)
        for cell in cells
    ]  # fmt: skip


def draw_figures(figures: Figures, rng: Random, largest: int = LARGEST) -> Picture:
    """A picture of the figures: none touches another or the edge; radii of 11 pixels or more, as the tower has it."""
    size, radius = _sized(figures, rng, largest)
    colours = [_tint(figure.colour, rng) for figure in figures.figures]
    image = make_paper(size, _contrasting(colours, rng), 12.0, rng)
    outline = (rng.randint(0, 60),) * 3 if rng.random() < 0.15 else None
    smooth = rng.random() < 0.8
    alike = rng.random() < 0.3
    for figure, colour in zip(figures.figures, colours, strict=True):
        own = (
            radius
            if alike
            else max(rng.uniform(0.6, 1.0) * radius, min(radius, LEAST_RADIUS / min(processor_scale(size))))
        )
        mask = _mask(figure.shape, own, smooth, rng)
        centre = (figure.x * size[0], figure.y * size[1])
        if outline:
            _stamp(image, mask.resize((mask.width + 3, mask.height + 3)), centre, outline)
        _stamp(image, mask, centre, colour)
    return Picture(image, figures, noise=pick_noise(rng))


def _sized(figures: Figures, rng: Random, largest: int) -> tuple[Size, float]:
    """A size in which every figure has room, and the radius up to which it has."""
    aspect = _pick_aspect(figures, rng)
    radius = LEAST_RADIUS + 2 + 30 * rng.random() ** 2.5
    longest = radius / _room(figures, (aspect, 1.0)) * max(aspect, 1.0)
    needed = (LEAST_RADIUS + 2) / _room(figures, (aspect, 1.0)) * max(aspect, 1.0)
    limit = pick_longest(rng, largest)
    longest = max(needed, min(longest, limit) if limit <= 224 else rng.uniform(112, limit))
    height = longest / max(aspect, 1.0)
    size = allowed(height * aspect, height, whole=rng.random() < 0.5)
    return size, max(_room(figures, size), LEAST_RADIUS)


def _pick_aspect(figures: Figures, rng: Random) -> float:
    """Width over height: figures in a line get a picture that is longer that way."""
    count = len(figures.figures)
    if figures.arrangement == "row":
        return min(3.9, rng.uniform(max(0.9, count / 3), max(1.3, count * 0.9)))
    if figures.arrangement == "column":
        return 1 / min(3.9, rng.uniform(max(0.9, count / 3), max(1.3, count * 0.9)))
    return 2 ** rng.uniform(-0.9, 0.9)


def _room(figures: Figures, size: tuple[float, float]) -> float:
    """The radius that all figures may have at once in a picture of that width and height."""
    places = [(figure.x * size[0], figure.y * size[1]) for figure in figures.figures]
    edges = (min(x, size[0] - x, y, size[1] - y) * 0.92 for x, y in places)
    pairs = (
        hypot(one[0] - two[0], one[1] - two[1]) * 0.45 for at, one in enumerate(places) for two in places[at + 1 :]
    )
    return min(min(edges), min(pairs, default=1e9))


def _tint(name: str, rng: Random) -> Colour:
    hue, saturation, value = (rng.uniform(low, high) for low, high in HSV[name])
    red, green, blue = hsv_to_rgb(hue % 360 / 360, saturation, value)
    return round(red * 255), round(green * 255), round(blue * 255)


def _contrasting(colours: list[Colour], rng: Random) -> Colour:
    """Paper far from all of the colours: the first that is far enough, or the farthest of forty."""
    best, farthest = (255, 255, 255), -1.0
    for _ in range(40):
        paper = _paper_colour(rng)
        nearest = min(hypot(*(a - b for a, b in zip(paper, colour, strict=True))) for colour in colours)
        if nearest > LEAST_DISTANCE:
            return paper
        if nearest > farthest:
            best, farthest = paper, nearest
    return best


def _paper_colour(rng: Random) -> Colour:
    draw = rng.random()
    if draw < 0.3:
        return (255, 255, 255)
    if draw < 0.6:
        grey = rng.randint(20, 245)
        return grey, grey, grey
    low, high = (190, 255) if draw < 0.8 else (0, 80) if draw < 0.9 else (0, 255)
    return rng.randint(low, high), rng.randint(low, high), rng.randint(low, high)


def _stamp(image: Image.Image, mask: Image.Image, centre: tuple[float, float], colour: Colour) -> None:
    left, top = round(centre[0] - mask.width / 2), round(centre[1] - mask.height / 2)
    image.paste(colour, (left, top, left + mask.width, top + mask.height), mask)


def _mask(shape: str, radius: float, smooth: bool, rng: Random) -> Image.Image:
    """The shape's ink, within the radius around the middle of an "L" image."""
    scale = SMOOTHING if smooth else 1
    half = max(1, round(radius)) * scale
    mask = Image.new("L", (2 * half + scale, 2 * half + scale))
    limit = SLANT.get(shape, 9.0)
    turn, squash = radians(rng.uniform(-limit, limit)), rng.uniform(0.9, 1.0)
    points = _turned(_outline(shape), turn, squash, radius * scale, half + scale / 2)
    draw = ImageDraw.Draw(mask)
    draw.polygon(points, fill=255)
    if shape == "ring":
        hole = rng.uniform(0.45, 0.65)
        draw.polygon(_turned(_outline(shape), turn, squash, radius * scale * hole, half + scale / 2), fill=0)
    return mask.reduce(scale) if smooth else mask


def _turned(points: Points, turn: float, squash: float, radius: float, middle: float) -> list[tuple[float, float]]:
    across, along = cos(turn) * radius, sin(turn) * radius
    return [(middle + (x * squash) * across - y * along, middle + (x * squash) * along + y * across) for x, y in points]


@lru_cache(maxsize=16)
def _outline(shape: str) -> Points:
    """The shape's corners in the unit circle, y downwards."""
    if shape in ("circle", "ring"):
        return _round(48)
    if shape == "square":
        return ((-0.71, -0.71), (0.71, -0.71), (0.71, 0.71), (-0.71, 0.71))
    if shape == "triangle":
        return ((0.0, -1.0), (0.87, 0.5), (-0.87, 0.5))
    if shape == "diamond":
        return ((0.0, -1.0), (0.72, 0.0), (0.0, 1.0), (-0.72, 0.0))
    if shape == "cross":
        a, b = 0.3, 0.94
        return (
            (-a, -b),
            (a, -b),
            (a, -a),
            (b, -a),
            (b, a),
            (a, a),
            (a, b),
            (-a, b),
            (-a, a),
            (-b, a),
            (-b, -a),
            (-a, -a),
        )
    if shape == "star":
        radii = (1.0, 0.42)
        return tuple((radii[n % 2] * sin(n * pi / 5), -radii[n % 2] * cos(n * pi / 5)) for n in range(10))
    if shape == "heart":
        turns = [n * 2 * pi / 40 for n in range(40)]
        return tuple(
            (sin(t) ** 3 * 0.95, -(13 * cos(t) - 5 * cos(2 * t) - 2 * cos(3 * t) - cos(4 * t) + 2.5) / 17)
            for t in turns
        )
    raise ValueError(f"no shape is called {shape!r}")


def _round(corners: int) -> Points:
    return tuple((cos(n * 2 * pi / corners), sin(n * 2 * pi / corners)) for n in range(corners))
