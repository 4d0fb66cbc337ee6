"""Pictures: what is drawn is whole, legible, of the size a client may send, and the same from the same seed."""

from itertools import combinations, pairwise
from math import hypot
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from tools.tiny_vl import draw, questions
from tools.tiny_vl.draw_paper import contrasting, luminance, pick_inks, processor_size
from tools.tiny_vl.draw_text import Line
from tools.tiny_vl.fonts import FACES, HELD_OUT, Face
from tools.tiny_vl.questions import invent
from tools.tiny_vl.scenes import (
    COLOURS,
    LOOK_ALIKE,
    SHAPES,
    UNAMBIGUOUS,
    BarChart,
    LetterGrid,
    Picture,
    Receipt,
    Sign,
)
from tools.tiny_vl.sheet import make_sheet

LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"


def text(rng: Random, least: int = 1, most: int = 10, alphabet: str = LOOK_ALIKE) -> str:
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(least, most)))


def rows_of_ink(font: ImageFont.FreeTypeFont, letter: str) -> list[int]:
    image = Image.new("L", (200, 200))
    ImageDraw.Draw(image).text((20, 20), letter, fill=255, font=font)
    return [row for row, peak in enumerate(np.asarray(image).max(axis=1)) if peak]


def figures(rng: Random, arrangement: str, largest: int = 448) -> Picture:
    count = 1 if arrangement == "single" else rng.randint(2, 6)
    names = [(rng.choice(SHAPES), rng.choice(COLOURS)) for _ in range(count)]
    return draw.draw_figures(draw.arrange(names, arrangement, rng), rng, largest)


def grid(rng: Random, dense: bool) -> LetterGrid:
    columns = rng.randint(2, 8)
    return LetterGrid(tuple("".join(rng.sample(LETTERS, columns)) for _ in range(rng.randint(2, 7))), dense)


def chart(rng: Random) -> BarChart:
    heights = (1.0, 0.8, 0.6, 0.4, 0.2)[: rng.randint(2, 5)]
    return BarChart(tuple(text(rng, 1, 5, UNAMBIGUOUS) for _ in heights), heights)


def receipt(rng: Random) -> Receipt:
    return Receipt(tuple((text(rng, 2, 6, UNAMBIGUOUS), rng.randint(10, 999)) for _ in range(rng.choice((2, 2, 3)))))


def any_picture(rng: Random, largest: int = 448) -> Picture:
    kind = rng.randrange(7)
    if kind == 0:
        return draw.draw_sign(text(rng), rng.uniform(10, 70), rng, rng.random() < 0.3, largest)
    if kind == 1:
        return figures(rng, rng.choice(("single", "row", "column", "scattered")), largest)
    if kind == 2:
        return draw.draw_letter_grid(grid(rng, dense=True), rng)
    if kind == 3:
        return draw.draw_letter_grid(grid(rng, dense=False), rng, largest=largest)
    if kind == 4:
        return draw.draw_bar_chart(chart(rng), rng, largest=largest)
    return draw.draw_receipt(receipt(rng), rng, largest=largest) if kind == 5 else draw.draw_blank(rng, largest)


def test_pictures_keep_within_the_sizes_that_the_model_is_for() -> None:
    rng = Random(1)
    for _ in range(700):
        width, height = any_picture(rng, rng.choice((112, 448))).image.size
        assert min(width, height) >= 56
        assert max(width, height) <= 448
        assert max(width, height) <= 4 * min(width, height)


def test_the_same_seed_draws_the_same_picture() -> None:
    for seed in range(40):
        one, other = any_picture(Random(seed)), any_picture(Random(seed))
        assert one.image.tobytes() == other.image.tobytes()
        assert (one.scene, one.glyph_pixels, one.noise) == (other.scene, other.glyph_pixels, other.noise)


def test_most_signs_are_small_and_a_few_are_large() -> None:
    rng = Random(2)
    sizes = [draw.draw_sign(text(rng, 1, 8), rng.triangular(16, 70, 16), rng).image.size for _ in range(600)]
    longest = sorted(max(size) for size in sizes)
    assert 84 <= longest[300] <= 168
    assert 0.02 < sum(side > 224 for side in longest) / 600 < 0.2
    off = sum(width % 28 > 0 or height % 28 > 0 for width, height in sizes) / 600
    assert 0.3 < off < 0.6


def test_sizes_after_the_processor_are_those_of_transformers() -> None:
    rng = Random(3)
    for _ in range(500):
        width, height = rng.randint(56, 448), rng.randint(56, 448)
        rows, columns = smart_resize(height, width, factor=28, min_pixels=3136, max_pixels=12_845_056)
        assert processor_size((width, height)) == (columns, rows)
    assert draw.resize_like_processor(Image.new("RGB", (100, 57))).size == (112, 56)


def test_glyphs_have_the_height_asked_for_after_the_resize() -> None:
    rng = Random(4)
    for _ in range(300):
        asked = rng.uniform(10, 30)
        glyph = draw.draw_sign(text(rng, 1, 3), asked, rng, largest=224).glyph_pixels
        assert glyph is not None
        assert asked - 1.5 <= glyph <= asked + 3  # steps of the faces


def test_long_text_shrinks_but_stays_readable() -> None:
    rng = Random(5)
    for _ in range(200):
        picture = draw.draw_sign("W" * 10, 60, rng, largest=112)
        assert picture.glyph_pixels is not None
        assert 16 <= picture.glyph_pixels < 30


def test_text_lies_wholly_inside() -> None:
    rng = Random(6)
    for _ in range(300):
        line = Line(text(rng), rng.choice(FACES), rng.uniform(-7, 7), rng.choice((0.0, 0.2)))
        cap = rng.uniform(10, 40)
        mask = line.mask(cap)
        width, height = line.extent(cap)
        assert mask.width <= width
        assert mask.height <= height
        ink = np.asarray(mask)
        assert ink.max() > 150
        assert max(ink[0].max(), ink[-1].max(), ink[:, 0].max(), ink[:, -1].max()) < 128, line


def test_ink_stands_out_from_its_paper() -> None:
    rng = Random(7)
    for _ in range(500):
        inks = pick_inks(rng)
        assert abs(luminance(inks.ink) - luminance(inks.paper)) > 70


@pytest.mark.parametrize("face", FACES + HELD_OUT, ids=lambda face: face.file)
def test_every_face_can_write_every_character(face: Face) -> None:
    font = face.sized(40)
    drawn = {letter: bytes(font.getmask(letter)) for letter in LOOK_ALIKE}
    assert len(set(drawn.values())) >= len(LOOK_ALIKE) - 2  # I and l may be one glyph, but nothing is a placeholder
    for cap in (10, 16, 24, 50):
        assert cap - 1 <= face.cap_height(cap) <= cap + 1.5
        assert abs(face.cap_height(cap) - len(rows_of_ink(face.sized(cap), "H"))) <= 1


def test_no_held_out_face_is_trained_on() -> None:
    assert not {face.file for face in FACES} & {face.file for face in HELD_OUT}


def test_a_missing_package_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="pip install font-nowhere"):
        Face("Nowhere", "none", "font_nowhere", "files", "Nowhere.ttf").path()


def test_labels_under_bars_do_not_touch() -> None:
    rng = Random(13)
    for kind in ("tallest", "shortest") * 150:
        scene, _ = invent(kind, rng)
        assert isinstance(scene, BarChart)
        face = rng.choice(FACES)
        picture = draw.draw_bar_chart(scene, rng, largest=112)
        assert picture.glyph_pixels is not None
        assert picture.glyph_pixels >= 11
        widths = [face.sized(12).getlength(label) for label in scene.labels]
        assert len(widths) * (max(widths) + 7) + 8 <= 448


def test_buttons_leave_their_text_legible() -> None:
    rng = Random(14)
    for _ in range(300):
        ink = pick_inks(rng).ink
        assert abs(luminance(contrasting(ink, rng)) - luminance(ink)) > 70


def test_a_few_letters_may_fill_a_large_picture() -> None:
    rng = Random(15)
    heights = [questions.draw(Sign("AB"), "read", rng, 448).glyph_pixels or 0 for _ in range(400)]
    assert max(heights) > 90


def test_figures_show_their_colours_at_their_places() -> None:
    rng = Random(8)
    for _ in range(150):
        picture = figures(rng, rng.choice(("row", "column", "scattered")), rng.choice((112, 448)))
        pixels = np.asarray(picture.image).astype(int)
        height, width, _ = pixels.shape
        paper = pixels[0, 0]
        for figure in picture.scene.figures:  # type: ignore[union-attr]
            if figure.shape != "ring":
                assert np.abs(pixels[int(figure.y * height), int(figure.x * width)] - paper).sum() > 60, figure


def test_figures_do_not_touch() -> None:
    rng = Random(9)
    for _ in range(150):
        picture = figures(rng, rng.choice(("row", "column", "scattered")), rng.choice((112, 448)))
        width, height = picture.image.size
        places = [(f.x * width, f.y * height) for f in picture.scene.figures]  # type: ignore[union-attr]
        assert min(hypot(a[0] - b[0], a[1] - b[1]) for a, b in combinations(places, 2)) > 22


@pytest.mark.parametrize("arrangement", ["row", "column"])
def test_neighbours_in_a_line_are_clearly_beside_each_other(arrangement: str) -> None:
    rng = Random(10)
    for _ in range(200):
        picture = figures(rng, arrangement)
        width, height = picture.image.size
        places = [(f.x * width, f.y * height) for f in picture.scene.figures]  # type: ignore[union-attr]
        for before, after in pairwise(places):
            along, across = after[0] - before[0], after[1] - before[1]
            if arrangement == "column":
                along, across = across, along
            assert along > 2 * abs(across)


def test_a_dense_grid_has_a_letter_to_a_column_of_tokens() -> None:
    rng = Random(11)
    for _ in range(100):
        letters = grid(rng, dense=True)
        picture = draw.draw_letter_grid(letters, rng)
        assert picture.image.width == 28 * len(letters.rows[0])
        assert picture.image.height // 28 - len(letters.rows) in (0, 1)
        assert picture.image.height % 28 == 0
        assert picture.glyph_pixels is not None
        assert 14 <= picture.glyph_pixels <= 21


def test_a_cropped_grid_holds_the_letters_that_are_handed_over() -> None:
    rng = Random(12)
    shuffled = 0
    for _ in range(100):
        letters = grid(rng, dense=True)
        picture, rest = draw.draw_letter_grid(letters, rng, crop=True)
        handed = picture.handed
        assert handed is not None
        assert picture.scene == rest
        assert len(handed.lines) == len(rest.rows) >= 2
        assert max(handed.lines) < picture.image.height // 28
        for kept, line in zip(rest.rows, handed.lines, strict=True):
            # A letter lies on the line of its row or, where the grid starts lower, on the next.
            rows = [letters.rows[at] for at in (line, line - 1) if 0 <= at < len(letters.rows)]
            assert kept in {"".join(row[column] for column in handed.columns) for row in rows}
        shuffled += list(handed.columns) != sorted(handed.columns)
    assert 30 < shuffled < 90


def test_noise_is_laid_over_only_when_asked() -> None:
    picture = Picture(Image.new("RGB", (100, 100), (128, 128, 128)), draw.draw_blank(Random(1)).scene, noise=12.0)
    pixels = np.asarray(draw.with_noise(picture, Random(1)))
    assert 11 < pixels.std() < 13
    assert np.asarray(picture.image).std() == 0


def test_the_contact_sheet_is_small_enough_for_the_docs(tmp_path: Path) -> None:
    make_sheet(tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size < 400_000
