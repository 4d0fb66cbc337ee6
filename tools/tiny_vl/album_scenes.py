"""Scenes for several pictures in one prompt: the one that is asked about, others around it, and pairs to compare."""

from dataclasses import replace
from random import Random

from tools.tiny_vl.draw import arrange
from tools.tiny_vl.question import Question
from tools.tiny_vl.questions_figures import single_figure
from tools.tiny_vl.scenes import COLOURS, SHAPES, Figures, Scene, Sign
from tools.tiny_vl.setting import Setting
from tools.tiny_vl.texts import near_miss, readable_text, unambiguous_string

NEAR = 0.3  # share of other pictures that differ from the one asked for in one thing only
_NEAR_TWINS = 0.5  # the same of unlike texts that are compared


def with_short_texts(setting: Setting, longest: int) -> Setting:
    return replace(setting, longest=min(longest, setting.longest))


def sign(rng: Random, setting: Setting) -> Sign:
    text = readable_text if rng.random() < 0.45 else unambiguous_string
    return Sign(text(rng.randint(1, setting.longest), rng))


def quotable_sign(rng: Random, setting: Setting) -> Sign:
    """A sign whose text can be quoted in a question: its last character isn't a mark of the question's own."""
    while not (found := sign(rng, setting)).text[-1].isalnum():
        pass
    return found


def pair_of_figures(rng: Random) -> Figures:
    names = list(zip(rng.sample(SHAPES, 2), rng.sample(COLOURS, 2), strict=True))
    return arrange(names, rng.choice(("row", "column")), rng)


def _near_sign(text: str, rng: Random) -> Sign:
    return Sign(near_miss(text, rng))


def _near_figure(figures: Figures, rng: Random) -> Figures:
    """The first figure with another shape or another colour, alone."""
    figure = figures.figures[0]
    if rng.random() < 0.5:
        return arrange([(rng.choice([s for s in SHAPES if s != figure.shape]), figure.colour)], "single", rng)
    return arrange([(figure.shape, rng.choice([c for c in COLOURS if c != figure.colour]))], "single", rng)


def anything(rng: Random, setting: Setting) -> Scene:
    """A sign or one figure."""
    return sign(rng, setting) if rng.random() < 0.6 else single_figure(rng)


def around(subject: Scene, rng: Random, setting: Setting, count: int, near: float = NEAR) -> tuple[list[Scene], int]:
    """The subject among other scenes, a share of them close to it, and its place."""
    others: list[Scene] = []
    for _ in range(count - 1):
        if rng.random() >= near:
            alike = rng.random() < 0.6
            others.append(sign(rng, setting) if alike == isinstance(subject, Sign) else single_figure(rng))
        elif isinstance(subject, Sign):
            others.append(_near_sign(subject.text, rng))
        else:
            assert isinstance(subject, Figures)
            others.append(_near_figure(subject, rng))
    place = rng.randrange(count)
    return [*others[:place], subject, *others[place:]], place


def what_it_shows(kind: str, scene: Scene) -> Question:
    """The question for all that a sign says or that figures are."""
    if isinstance(scene, Sign):
        return Question(kind, "read", scene.text)
    assert isinstance(scene, Figures)
    topic = "name" if len(scene.figures) == 1 else "list"
    return Question(kind, topic, ", ".join(figure.name for figure in scene.figures))


def pair_of_signs(same: bool, rng: Random, setting: Setting, easy: bool = False) -> tuple[Scene, Scene]:
    """Two signs with the same text, or with texts that now and then differ in one character only."""
    one = sign(rng, setting)
    while not same and (far := sign(rng, setting)).text == one.text:
        pass
    return one, one if same else far if easy or rng.random() >= _NEAR_TWINS else _near_sign(one.text, rng)


def twin_figures(kind: str, same: bool, rng: Random, easy: bool = False) -> tuple[Scene, Scene]:
    """Two pictures of a figure each, of the same shape (same-shape) or colour (same-colour) or not.

    The other quality is as often the same as not, for it must not answer the question; where it is easy, it does.
    """
    shapes, colours = rng.sample(SHAPES, 2), rng.sample(COLOURS, 2)
    alike = same if easy else rng.random() < 0.5
    shape_too = same if kind == "same-shape" else alike
    colour_too = same if kind == "same-colour" else alike
    first, second = (shapes[0], colours[0]), (shapes[not shape_too], colours[not colour_too])
    return arrange([first], "single", rng), arrange([second], "single", rng)
