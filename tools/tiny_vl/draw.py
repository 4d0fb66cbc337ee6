"""Drawing: a picture of any scene, each time another. What the rest of the folder imports."""

from random import Random

from PIL import ImageDraw

from tools.tiny_vl.draw_figures import arrange, draw_figures
from tools.tiny_vl.draw_grids import draw_letter_grid
from tools.tiny_vl.draw_paper import (
    LARGEST,
    make_paper,
    pick_inks,
    pick_longest,
    pick_noise,
    pick_size,
    processor_size,
    resize_like_processor,
    with_noise,
)
from tools.tiny_vl.draw_tables import draw_bar_chart, draw_receipt, price
from tools.tiny_vl.draw_text import draw_sign
from tools.tiny_vl.scenes import Blank, Picture

__all__ = [
    "arrange",
    "draw_bar_chart",
    "draw_blank",
    "draw_figures",
    "draw_letter_grid",
    "draw_receipt",
    "draw_sign",
    "price",
    "processor_size",
    "resize_like_processor",
    "with_noise",
]


def draw_blank(rng: Random, largest: int = LARGEST) -> Picture:
    """A picture of nothing: paper of any colour, now and then with a frame."""
    size = pick_size((rng.uniform(56, 112), rng.uniform(56, 112)), rng, pick_longest(rng, largest))
    inks = pick_inks(rng)
    image = make_paper(size, inks.paper, inks.room, rng)
    if rng.random() < 0.15:
        ImageDraw.Draw(image).rectangle((0, 0, size[0] - 1, size[1] - 1), outline=inks.ink, width=rng.randint(1, 3))
    return Picture(image, Blank(), noise=pick_noise(rng))
