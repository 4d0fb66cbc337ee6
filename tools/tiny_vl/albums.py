"""Questions about several pictures in one prompt."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from tools.tiny_vl.draw import arrange
from tools.tiny_vl.layout import with_pictures
from tools.tiny_vl.phrasebook import ORDINALS, first_or_last, nth, two_of
from tools.tiny_vl.question import Question
from tools.tiny_vl.questions import ask, draw, invent
from tools.tiny_vl.questions_figures import FIGURE_KINDS, single_figure
from tools.tiny_vl.scenes import COLOURS, SHAPES, Figures, Picture, Scene, Sign, Turn
from tools.tiny_vl.setting import Setting
from tools.tiny_vl.texts import near_miss, readable_text, unambiguous_string

_NEAR = 0.3  # share of other pictures that differ from the one asked for in one thing only
Asked = tuple[Question, str | None]  # and what the phrasing must call the picture


@dataclass(frozen=True, slots=True)
class Album:
    """Scenes in the order of their pictures; `asks` gives a new question about them each time.

    subject: the place of the picture whose loss would leave nothing to answer; None: there is no such
    """

    scenes: list[Scene]
    asks: Callable[[Random], Asked]
    subject: int | None = None


def _count(rng: Random) -> int:
    return rng.choices((2, 3, 4, 5, 6), (36, 25, 18, 11, 10))[0]


def _sign(rng: Random, setting: Setting) -> Sign:
    text = readable_text if rng.random() < 0.45 else unambiguous_string
    return Sign(text(rng.randint(1, setting.longest), rng))


def _quotable_sign(rng: Random, setting: Setting) -> Sign:
    """A sign whose text can be quoted in a question: its last character isn't a mark of the question's own."""
    while not (sign := _sign(rng, setting)).text[-1].isalnum():
        pass
    return sign


def _pair_of_figures(rng: Random) -> Figures:
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
    return _sign(rng, setting) if rng.random() < 0.6 else single_figure(rng)


def _around(subject: Scene, rng: Random, setting: Setting, count: int) -> tuple[list[Scene], int]:
    """The subject among other scenes, some of them close to it, and its place."""
    others: list[Scene] = []
    for _ in range(count - 1):
        if rng.random() >= _NEAR:
            alike = rng.random() < 0.6
            others.append(_sign(rng, setting) if alike == isinstance(subject, Sign) else single_figure(rng))
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


def _nth(kind: str, rng: Random, setting: Setting) -> Album:
    """nth-says, nth-shows, first-last: what one of the pictures says or shows."""
    shows = {"nth-says": 0.0, "nth-shows": 1.0}.get(kind, 0.4)
    if rng.random() >= shows:
        subject: Scene = _sign(rng, setting)
    else:
        subject = single_figure(rng) if rng.random() < 0.75 else _pair_of_figures(rng)
    scenes, place = _around(subject, rng, setting, _count(rng))
    if kind == "first-last":
        place = rng.choice((0, len(scenes) - 1))

    def asks(rng: Random) -> Asked:
        if kind == "first-last":
            return what_it_shows(kind, scenes[place]), first_or_last(place == 0, rng)
        return what_it_shows(kind, scenes[place]), nth(place + 1, rng)

    return Album(scenes, asks, place)


def _nth_asks(kind: str, rng: Random, setting: Setting) -> Album:
    """Any question about figures, put to one of the pictures."""
    scene, question = invent(rng.choice(sorted(FIGURE_KINDS - {"name", "list"})), rng)
    scenes, place = _around(single_figure(rng), rng, setting, _count(rng))
    scenes[place] = scene

    def asks(rng: Random) -> Asked:
        another = ask(question.kind, scene, rng) or question
        return replace(another, kind=kind), nth(place + 1, rng)

    return Album(scenes, asks, place)


def _which(kind: str, rng: Random, setting: Setting) -> Album:
    """Which picture says or shows something that only one of them says or shows."""
    subject = _quotable_sign(rng, setting) if kind == "which-says" else single_figure(rng)
    scenes, _ = _around(subject, rng, setting, _count(rng))

    def asks(rng: Random) -> Asked:
        wanted = [scene for scene in scenes if isinstance(scene, type(subject)) and _asked_once(scene, scenes)]
        scene = rng.choice(wanted)
        answer = ORDINALS[next(place for place, other in enumerate(scenes) if other is scene)]
        return Question(kind, kind, answer, {"a": _called(scene, scenes, rng)}), None

    return Album(scenes, asks) if _asked_once(subject, scenes) else _which(kind, rng, setting)


def _asked_once(scene: Scene, scenes: list[Scene]) -> bool:
    if isinstance(scene, Sign):
        # Nor may another hold it as a part: a user would say that that one has the text, too.
        return scene.text[-1].isalnum() and sum(isinstance(s, Sign) and scene.text in s.text for s in scenes) == 1
    return isinstance(scene, Figures) and _names(scenes).count(scene.figures[0].name) == 1


def _names(scenes: list[Scene]) -> list[str]:
    return [scene.figures[0].name for scene in scenes if isinstance(scene, Figures)]


def _called(scene: Scene, scenes: list[Scene], rng: Random) -> str:
    if isinstance(scene, Sign):
        return scene.text
    assert isinstance(scene, Figures)
    figure, words = scene.figures[0], " ".join(_names(scenes)).split()
    ways = [figure.name, figure.name, figure.name]
    ways += [word for word in (figure.shape, f"{figure.colour} shape") if words.count(word.split()[0]) == 1]
    thing = rng.choice(ways)
    return ("the " if rng.random() < 0.6 else "an " if thing[0] in "aeiou" else "a ") + thing


def _same(kind: str, rng: Random, setting: Setting) -> Album:
    """Whether two pictures say or show the same; unlike ones are close now and then."""
    count = rng.choices((2, 3, 4), (70, 18, 12))[0]
    scenes: list[Scene] = [anything(rng, setting) for _ in range(count)]
    one, other = sorted(rng.sample(range(count), 2))
    same = rng.random() < 0.5
    scenes[one], scenes[other] = _twins(kind, same, rng, setting)

    def asks(rng: Random) -> Asked:
        pic = two_of(one + 1, other + 1, rng) if count > 2 else None
        return Question(kind, kind, "yes" if same else "no"), pic

    return Album(scenes, asks)


def _twins(kind: str, same: bool, rng: Random, setting: Setting) -> tuple[Scene, Scene]:
    if kind == "same-text":
        sign = _sign(rng, setting)
        while not same and (far := _sign(rng, setting)).text == sign.text:
            pass
        return sign, sign if same else far if rng.random() < 0.4 else _near_sign(sign.text, rng)
    shapes, colours = rng.sample(SHAPES, 2), rng.sample(COLOURS, 2)
    # The other quality is as often the same as not: it must not answer the question.
    alike = rng.random() < 0.5
    shape_too = same if kind == "same-shape" else alike
    colour_too = same if kind == "same-colour" else alike
    first, second = (shapes[0], colours[0]), (shapes[not shape_too], colours[not colour_too])
    return arrange([first], "single", rng), arrange([second], "single", rng)


def _how_many(kind: str, rng: Random, setting: Setting) -> Album:
    scenes = [anything(rng, setting) for _ in range(rng.randint(1, 6))]
    return Album(scenes, lambda rng: (Question(kind, kind, str(len(scenes))), None))


_ALBUM_BY_KIND: dict[str, Callable[[str, Random, Setting], Album]] = {
    "nth-says": _nth,
    "nth-shows": _nth,
    "first-last": _nth,
    "nth-asks": _nth_asks,
    "which-says": _which,
    "which-shows": _which,
    "same-text": _same,
    "same-shape": _same,
    "same-colour": _same,
    "how-many-images": _how_many,
}
ALBUM_KINDS = frozenset(_ALBUM_BY_KIND)


def draw_all(scenes: list[Scene], setting: Setting, rng: Random) -> list[Picture]:
    side = setting.side(len(scenes), rng)
    return [draw(scene, "read", rng, side, setting.held_out_fonts) for scene in scenes]


def album_turns(kind: str, setting: Setting, rng: Random) -> tuple[Turn, ...]:
    """One prompt with several pictures; in training sometimes a second question, or a picture that is lost."""
    album = _ALBUM_BY_KIND[kind](kind, rng, setting)
    pictures = draw_all(album.scenes, setting, rng)
    question, pic = album.asks(rng)
    if setting.training and album.subject is not None and rng.random() < 0.05:
        pictures[album.subject] = replace(pictures[album.subject], lost=True)
        question = replace(question, answer="nothing", kind="blank")
    first = Turn(with_pictures(pictures, setting.say(question, rng, pic), setting, rng), question.answer, question.kind)
    if not setting.training or rng.random() < 0.6 or question.kind == "blank":
        return (first,)
    return (first, *_about_another(album.scenes, album.subject, setting, rng))


def _about_another(scenes: list[Scene], subject: int | None, setting: Setting, rng: Random) -> tuple[Turn, ...]:
    """A further question, about a picture that was not the subject so far."""
    place = rng.choice([place for place in range(len(scenes)) if place != subject] or [0])
    kind = "nth-says" if isinstance(scenes[place], Sign) else "nth-shows"
    question = what_it_shows(kind, scenes[place])
    return (Turn((setting.say(question, rng, nth(place + 1, rng)),), question.answer, kind),)
