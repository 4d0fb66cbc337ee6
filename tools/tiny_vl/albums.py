"""Questions about several pictures in one prompt."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from tools.tiny_vl.album_scenes import (
    NEAR,
    anything,
    around,
    pair_of_figures,
    pair_of_signs,
    quotable_sign,
    sign,
    twin_figures,
    what_it_shows,
    with_short_texts,
)
from tools.tiny_vl.layout import with_pictures
from tools.tiny_vl.phrasebook import ORDINALS, first_or_last, nth, two_of
from tools.tiny_vl.question import Question
from tools.tiny_vl.questions import ask, draw, invent
from tools.tiny_vl.questions_figures import FIGURE_KINDS, single_figure
from tools.tiny_vl.questions_pages import listing
from tools.tiny_vl.scenes import Figures, Picture, Scene, Sign, Turn
from tools.tiny_vl.setting import Setting
from tools.tiny_vl.texts import near_miss

_NEAR_TEXTS = 0.45  # share of other signs that differ from the one asked for in one character only
_READ_FIRST = 0.3  # in training, of questions that compare pictures: those that come after turns that read them
Asked = tuple[Question, str | None]  # and what the phrasing must call the picture


@dataclass(frozen=True, slots=True)
class Album:
    """Scenes in the order of their pictures; `asks` gives a new question about them each time.

    subject: the place of the picture whose loss would leave nothing to answer; None: there is no such
    compared: places of the pictures that have to be looked at together
    another: a further question that these do not answer, if there is one
    """

    scenes: list[Scene]
    asks: Callable[[Random], Asked]
    subject: int | None = None
    compared: tuple[int, ...] = ()
    another: Callable[[Random], Asked] | None = None


def _count(rng: Random, setting: Setting, easy: bool = False) -> int:
    """How many pictures; in training many are rarer, for they are dear."""
    if easy:
        return rng.randint(2, 3)
    return rng.choices((2, 3, 4, 5, 6), (46, 26, 14, 8, 6) if setting.training else (36, 25, 18, 11, 10))[0]


def _is_easy(setting: Setting, rng: Random) -> bool:
    return setting.ease > 0 and rng.random() < setting.ease


def _nth(kind: str, rng: Random, setting: Setting) -> Album:
    """nth-says, nth-shows, first-last: what one of the pictures says or shows."""
    shows = {"nth-says": 0.0, "nth-shows": 1.0}.get(kind, 0.4)
    if rng.random() >= shows:
        subject: Scene = sign(rng, setting)
    else:
        subject = single_figure(rng) if rng.random() < 0.75 else pair_of_figures(rng)
    scenes, place = around(subject, rng, setting, _count(rng, setting))
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
    scenes, place = around(single_figure(rng), rng, setting, _count(rng, setting))
    scenes[place] = scene

    def asks(rng: Random) -> Asked:
        another = ask(question.kind, scene, rng) or question
        return replace(another, kind=kind), nth(place + 1, rng)

    return Album(scenes, asks, place)


def _which(kind: str, rng: Random, setting: Setting) -> Album:
    """Which picture says or shows something that only one of them says or shows."""
    easy = _is_easy(setting, rng)
    if easy:
        setting = with_short_texts(setting, 4)
    subject = quotable_sign(rng, setting) if kind == "which-says" else single_figure(rng)
    near = 0.0 if easy else _NEAR_TEXTS if kind == "which-says" else NEAR
    scenes, _ = around(subject, rng, setting, _count(rng, setting, easy), near)
    if not _asked_once(subject, scenes):
        return _which(kind, rng, setting)

    def asks(rng: Random) -> Asked:
        wanted = [scene for scene in scenes if isinstance(scene, type(subject)) and _asked_once(scene, scenes)]
        scene = rng.choice(wanted)
        answer = ORDINALS[next(place for place, other in enumerate(scenes) if other is scene)]
        return Question(kind, kind, answer, {"a": _called(scene, scenes, rng)}), None

    # Of two pictures, what one is not the other must be.
    return Album(scenes, asks, None, tuple(range(len(scenes))), asks if len(scenes) > 2 else None)


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
    easy = _is_easy(setting, rng)
    if easy:
        setting = with_short_texts(setting, 3)
    count = 2 if easy else rng.choices((2, 3, 4), (70, 18, 12))[0]
    scenes: list[Scene] = [anything(rng, setting) for _ in range(count)]
    one, other = sorted(rng.sample(range(count), 2))
    same = rng.random() < 0.5
    scenes[one], scenes[other] = (
        pair_of_signs(same, rng, setting, easy) if kind == "same-text" else twin_figures(kind, same, rng, easy)
    )

    def asks(rng: Random) -> Asked:
        return _whether_same(kind, scenes, one, other), two_of(one + 1, other + 1, rng) if count > 2 else None

    def another(rng: Random) -> Asked:
        kinds = {"same-shape": "same-colour", "same-colour": "same-shape"}
        return _whether_same(kinds[kind], scenes, one, other), two_of(one + 1, other + 1, rng) if count > 2 else None

    return Album(scenes, asks, None, (one, other), None if easy or kind == "same-text" else another)


def _whether_same(kind: str, scenes: list[Scene], one: int, other: int) -> Question:
    seen = [_quality(kind, scenes[place]) for place in (one, other)]
    return Question(kind, kind, "yes" if seen[0] == seen[1] else "no")


def _quality(kind: str, scene: Scene) -> str:
    """What the kind of question compares."""
    if isinstance(scene, Sign):
        return scene.text
    assert isinstance(scene, Figures)
    return scene.figures[0].shape if kind == "same-shape" else scene.figures[0].colour


def _all(kind: str, rng: Random, setting: Setting) -> Album:
    """What two or three pictures say or show, one after the other; often two of them are alike or nearly."""
    setting, signs = with_short_texts(setting, 7), kind == "all-say"
    scenes: list[Scene] = [
        sign(rng, setting) if signs else single_figure(rng) for _ in range(rng.choices((2, 3), (75, 25))[0])
    ]
    if rng.random() < 0.5:
        alike = rng.random() < 0.5
        scenes[:2] = pair_of_signs(alike, rng, setting) if signs else twin_figures("same-shape", alike, rng)
    question = _listed(scenes)
    assert question is not None, f"{scenes} cannot be listed"
    return Album(scenes, lambda rng: (question, _all_of(rng) if len(scenes) > 2 else None))


def _listed(scenes: list[Scene]) -> Question | None:
    """A question for all that the pictures say or show; None if they are of two sorts, or it is too much."""
    kinds = {"all-say" if isinstance(scene, Sign) else "all-show" for scene in scenes}
    kind = kinds.pop()
    answers = [what_it_shows(kind, scene).answer for scene in scenes]
    if kinds or len(scenes) > 3 or any("," in answer for answer in answers):
        return None
    if kind == "all-show":  # words, so that more characters are fewer tokens
        return Question(kind, kind, ", ".join(answers))
    return listing(kind, kind, answers)


def _differ(kind: str, rng: Random, setting: Setting) -> Album:
    """In which characters two texts differ first: that of the first text, that of the second."""
    one = sign(rng, with_short_texts(setting, 8))
    other = near_miss(one.text, rng)
    if rng.random() < 0.2 and len(one.text) > 2:
        other = near_miss(other, rng)
        if other == one.text:
            return _differ(kind, rng, setting)
    letters = next(pair for pair in zip(one.text, other, strict=True) if pair[0] != pair[1])
    question = Question(kind, kind, ", ".join(letters))
    return Album([one, Sign(other)], lambda rng: (question, None))


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
    "differ": _differ,
    "all-say": _all,
    "all-show": _all,
}
ALBUM_KINDS = frozenset(_ALBUM_BY_KIND)


def draw_all(scenes: list[Scene], setting: Setting, rng: Random) -> list[Picture]:
    side = setting.side(len(scenes), rng)
    return [draw(scene, "read", rng, side, setting.held_out_fonts) for scene in scenes]


def album_turns(kind: str, setting: Setting, rng: Random) -> tuple[Turn, ...]:
    """One prompt with several pictures; in training sometimes more questions, or a picture that is lost."""
    album = _ALBUM_BY_KIND[kind](kind, rng, setting)
    pictures = draw_all(album.scenes, setting, rng)
    question, pic = album.asks(rng)
    if setting.training and album.subject is not None and rng.random() < 0.05:
        pictures[album.subject] = replace(pictures[album.subject], lost=True)
        question = replace(question, answer="nothing", kind="blank")
    (first, pic), *others = _with_others(album, (question, pic), rng) if setting.training else [(question, pic)]
    opening = with_pictures(pictures, setting.say(first, rng, pic), setting, rng)
    later = [Turn((setting.say(other, rng, pic),), other.answer, other.kind) for other, pic in others]
    return (Turn(opening, first.answer, first.kind), *later)


def _with_others(album: Album, asked: Asked, rng: Random) -> list[Asked]:
    """The question alone, after others that read what it compares, or before one that it does not answer."""
    if asked[0].kind == "blank":
        return [asked]
    if album.compared and rng.random() < _READ_FIRST:
        return [*_reading(album, rng), asked]
    if rng.random() < 0.6:
        return [asked]
    if album.another is not None and rng.random() < 0.7:
        another = album.another(rng)
        return [asked] if another[0] == asked[0] else [asked, another]
    return [asked, _about_another(album, rng)]


def _reading(album: Album, rng: Random) -> list[Asked]:
    """Questions for what the compared pictures say or show: for all at once, or one at a time."""
    count = len(album.scenes)
    if len(album.compared) == count and rng.random() < 0.6 and (question := _listed(album.scenes)):
        return [(question, _all_of(rng) if count > 2 else None)]
    places = sorted(rng.sample(album.compared, min(3, len(album.compared))))
    return [_about(place, album, rng) for place in places]


def _about_another(album: Album, rng: Random) -> Asked:
    """A further question, about a picture that was not the subject so far."""
    return _about(
        rng.choice([place for place in range(len(album.scenes)) if place != album.subject] or [0]), album, rng
    )


def _about(place: int, album: Album, rng: Random) -> Asked:
    scene = album.scenes[place]
    return what_it_shows("nth-says" if isinstance(scene, Sign) else "nth-shows", scene), nth(place + 1, rng)


def _all_of(rng: Random) -> str:
    """All pictures, when there are more than two."""
    return rng.choice(("all {}", "the {}", "these {}", "all the {}")).format(
        rng.choice(("images", "pictures", "photos"))
    )
