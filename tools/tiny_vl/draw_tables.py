"""Bar charts and receipts."""

from random import Random

from PIL import Image, ImageDraw, ImageFont

from tools.tiny_vl.draw_paper import (
    LARGEST,
    Colour,
    Inks,
    allowed,
    luminance,
    make_paper,
    pick_inks,
    pick_longest,
    pick_noise,
    pick_size,
    processor_scale,
)
from tools.tiny_vl.fonts import Face, pick_face
from tools.tiny_vl.scenes import BarChart, Picture, Receipt

LEAST_CAP, LEAST_PRINT = 12.0, 10.0  # pixels after the processor's resize: of charts, of receipts


def draw_bar_chart(chart: BarChart, rng: Random, held_out: bool = False, largest: int = LARGEST) -> Picture:
    """A picture of the bars, a label under each; 112–280 pixels a side where the labels let it."""
    face, cap = pick_face(rng, held_out), rng.uniform(LEAST_CAP, 18)
    longest = min(280, pick_longest(rng, largest) + 56)
    while (needed := _row_width(chart.labels, face, cap)) > longest and cap > LEAST_CAP:
        cap = max(LEAST_CAP, cap - 1)
    width = max(needed, min(longest, max(needed, 112.0) * rng.uniform(1, 1.4)))
    size = allowed(width, rng.uniform(min(112, longest), min(200, longest)), whole=rng.random() < 0.5)
    if needed > size[0] * processor_scale(size)[1]:
        size = allowed(*size, whole=True)
    cap /= processor_scale(size)[1]
    inks = pick_inks(rng)
    image = make_paper(size, inks.paper, inks.room, rng)
    _draw_bars(image, chart, face.sized(cap), inks, rng)
    return Picture(image, chart, face.cap_height(cap) * processor_scale(size)[1], pick_noise(rng))


def _row_width(labels: tuple[str, ...], face: Face, cap: float) -> float:
    """Pixels that the labels need side by side."""
    widest = max(face.sized(cap).getlength(label) for label in labels)
    return max(26.0, widest + 7) * len(labels) + 8


def _draw_bars(image: Image.Image, chart: BarChart, font: ImageFont.FreeTypeFont, inks: Inks, rng: Random) -> None:
    draw = ImageDraw.Draw(image)
    count = len(chart.labels)
    label_height = font.getbbox("Hgy")[3] - font.getbbox("H")[1]
    floor = image.height - label_height - rng.randint(6, 9)
    tallest = (floor - 6) * rng.uniform(0.75, 1.0)
    pitch = (image.width - 8) / count
    thick = pitch * rng.uniform(0.4, 0.8)
    many = rng.random() < 0.5
    bar = _bar_colour(inks, rng)
    for place, (label, height) in enumerate(zip(chart.labels, chart.heights, strict=True)):
        middle = 4 + pitch * (place + 0.5)
        bar = _bar_colour(inks, rng) if many else bar
        draw.rectangle((middle - thick / 2, floor - tallest * height, middle + thick / 2, floor), fill=bar)
        _centre(draw, (middle, floor + 4), label, font, inks.ink)
    if rng.random() < 0.6:
        draw.line((3, floor, image.width - 4, floor), fill=inks.ink, width=rng.randint(1, 2))
    if rng.random() < 0.3:
        draw.line((3, 3, 3, floor), fill=inks.ink, width=1)


def _bar_colour(inks: Inks, rng: Random) -> Colour:
    while True:
        colour = (rng.randint(0, 255), rng.randint(0, 255), rng.randint(0, 255))
        if abs(luminance(colour) - luminance(inks.paper)) > 60:
            return colour


def _centre(
    draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, font: ImageFont.FreeTypeFont, ink: Colour
) -> None:
    draw.text((at[0] - font.getlength(text) / 2, at[1] - font.getbbox("H")[1]), text, fill=ink, font=font)


def draw_receipt(receipt: Receipt, rng: Random, held_out: bool = False, largest: int = LARGEST) -> Picture:
    """A picture of the receipt: a line an item, perhaps a heading, the total last; up to 336 pixels wide."""
    rows = [(name, price(cents)) for name, cents in receipt.items]
    rows.append(("TOTAL" if rng.random() < 0.75 else "Total", price(receipt.total)))
    heading = rng.choice(("SHOP", "CAFE", "MARKET", "STORE", "RECEIPT")) if rng.random() < 0.2 else None
    face, cap = pick_face(rng, held_out), rng.uniform(LEAST_PRINT, 20)
    gap, leading = rng.uniform(1, 3), rng.uniform(1.6, 2.2)
    lines = len(rows) + (heading is not None)
    longest = min(336, pick_longest(rng, largest) + 28)
    while (content := _extent(rows, face, cap, gap, lines * leading))[0] > longest and cap > LEAST_PRINT:
        cap = max(LEAST_PRINT, cap - 1)
    size = pick_size(content, rng, longest)
    enlarged = cap / processor_scale(size)[1]
    needed = _extent(rows, face, enlarged, gap, lines * leading)
    if needed[0] <= size[0] and needed[1] <= size[1]:
        content, cap = needed, enlarged
    else:  # a picture in whole tokens isn't resized, so its lines take just the room that they were given
        size = allowed(size[0], size[1], whole=True)
    inks = pick_inks(rng)
    image = make_paper(size, inks.paper, inks.room, rng)
    _print(image, rows, heading, face.sized(cap), inks, (content[0] - 8, cap * leading), rng)
    return Picture(image, receipt, face.cap_height(cap) * processor_scale(size)[1], pick_noise(rng))


def price(cents: int) -> str:
    """An amount as receipts and answers write it: 5.50."""
    return f"{cents // 100}.{cents % 100:02d}"


def _extent(rows: list[tuple[str, str]], face: Face, cap: float, gap: float, leads: float) -> tuple[float, float]:
    font = face.sized(cap)
    names, prices = (max(font.getlength(text) for text in column) for column in zip(*rows, strict=True))
    return names + prices + gap * cap + 8, leads * cap + 8


def _print(
    image: Image.Image,
    rows: list[tuple[str, str]],
    heading: str | None,
    font: ImageFont.FreeTypeFont,
    inks: Inks,
    block: tuple[float, float],  # width of the lines, distance between them
    rng: Random,
) -> None:
    draw = ImageDraw.Draw(image)
    wide, lead = min(block[0], image.width - 8.0), block[1]
    tall = lead * (len(rows) + (heading is not None))
    left, y = rng.uniform(4, max(4.0, image.width - wide - 4)), rng.uniform(3, max(3.0, image.height - tall - 3))
    rise = font.getbbox("H")[1]
    aligned, ruled = rng.random() < 0.75, rng.random() < 0.4
    if heading:
        draw.text((left + (wide - font.getlength(heading)) / 2, y - rise), heading, fill=inks.ink, font=font)
        y += lead
    for place, (name, amount) in enumerate(rows):
        if ruled and place == len(rows) - 1:
            draw.line((left, y - lead * 0.14, left + wide, y - lead * 0.14), fill=inks.ink, width=1)
        draw.text((left, y - rise), name, fill=inks.ink, font=font)
        x = left + wide - font.getlength(amount) if aligned else left + font.getlength(name) + font.getlength("n")
        draw.text((x, y - rise), amount, fill=inks.ink, font=font)
        y += lead
