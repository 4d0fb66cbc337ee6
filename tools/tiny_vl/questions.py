"""Scenes for each kind of question about one picture, and the questions themselves."""

from random import Random

from tools.tiny_vl.draw import draw_bar_chart, draw_figures, draw_letter_grid, draw_receipt, draw_sign
from tools.tiny_vl.question import Question, leaks
from tools.tiny_vl.questions_figures import FIGURE_KINDS, ask_figures, figure_kinds, invent_figures
from tools.tiny_vl.questions_pages import PAGE_KINDS, ask_page, invent_page, page_kinds
from tools.tiny_vl.scenes import BarChart, Figures, LetterGrid, Picture, Receipt, Scene, Sign

VISUAL_KINDS = tuple(sorted(FIGURE_KINDS | PAGE_KINDS))
_TRIES = 40
_FEW, _LARGE_FROM = 3, 224  # characters that may fill a picture, if its sides may be longer than that
_LARGE_GLYPHS = (80.0, 100.0, 120.0, 140.0)  # of few sizes, for fonts are dear to load


def invent(kind: str, rng: Random, longest: int = 10) -> tuple[Scene, Question]:
    """A scene and a question of that kind about it; signs have at most `longest` characters."""
    for _ in range(_TRIES):
        scene = invent_figures(kind, rng) if kind in FIGURE_KINDS else invent_page(kind, rng, longest)
        question = ask(kind, scene, rng)
        if question is not None:
            return scene, question
    raise AssertionError(f"no scene in {_TRIES} allows a question of kind {kind}")


def ask(kind: str, scene: Scene, rng: Random) -> Question | None:
    """A question of that kind about the scene, None where it does not allow one."""
    if isinstance(scene, Figures):
        return ask_figures(kind, scene, rng)
    assert isinstance(scene, Sign | LetterGrid | BarChart | Receipt), f"nothing to ask about {scene}"
    return ask_page(kind, scene, rng)


def kinds_of(scene: Scene) -> tuple[str, ...]:
    """Kinds worth asking about the scene; empty where its first question tells all."""
    if isinstance(scene, Figures):
        return figure_kinds(scene)
    return page_kinds(scene) if isinstance(scene, Sign | LetterGrid | BarChart | Receipt) else ()


def further_question(asked: list[Question], scene: Scene, rng: Random) -> Question | None:
    """Another question about the scene that the earlier ones do not answer, if a few tries find one."""
    kinds = kinds_of(scene)
    for _ in range(4 if kinds else 0):
        question = ask(rng.choice(kinds), scene, rng)
        if question is not None and not leaks(asked, question):
            return question
    return None


def glyph_pixels(kind: str, text: str, largest: int, rng: Random) -> float:
    """Height of a sign's capitals: mostly near the least that the kind promises, for there lie the errors."""
    if kind == "read-small":
        return rng.uniform(10.0, 16.0)
    if len(text) <= _FEW and largest > _LARGE_FROM and rng.random() < 0.1:
        return rng.choice(_LARGE_GLYPHS)
    return 16.5 + 18 * rng.random() if rng.random() < 0.6 else 16.5 * (70 / 16.5) ** rng.random()


def draw(
    scene: Scene, kind: str, rng: Random, largest: int, held_out_fonts: bool = False, crop: bool = False
) -> Picture:
    """A picture of the scene, longest side at most `largest`; with crop, perhaps of a cut dense grid: see its scene."""
    match scene:
        case Sign(text):
            return draw_sign(text, glyph_pixels(kind, text, largest, rng), rng, held_out_fonts, largest)
        case Figures():
            return draw_figures(scene, rng, largest)
        case LetterGrid(dense=dense):
            if crop and dense and rng.random() < 0.6:
                return draw_letter_grid(scene, rng, held_out_fonts, crop=True)[0]
            return draw_letter_grid(scene, rng, held_out_fonts, largest=largest)
        case BarChart():
            return draw_bar_chart(scene, rng, held_out_fonts, largest)
        case Receipt():
            return draw_receipt(scene, rng, held_out_fonts, largest)
        case _:
            raise AssertionError(f"nothing to draw in {scene}")
