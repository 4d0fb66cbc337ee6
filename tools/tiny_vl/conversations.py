"""Samples: whole conversations of each kind, for evaluation and for training."""

from dataclasses import replace
from functools import cache
from itertools import accumulate
from random import Random

from tools.tiny_vl.albums import ALBUM_KINDS, album_turns
from tools.tiny_vl.chats import CHATS
from tools.tiny_vl.draw import draw_blank, processor_size
from tools.tiny_vl.draw_paper import UNIT
from tools.tiny_vl.families import EARLY_UNTIL, KINDS
from tools.tiny_vl.layout import with_picture
from tools.tiny_vl.phrasebook import seen_picture
from tools.tiny_vl.question import Question
from tools.tiny_vl.questions import VISUAL_KINDS, ask, draw, further_question, invent
from tools.tiny_vl.questions_pages import CHART_KINDS, invent_chart
from tools.tiny_vl.questions_text import small_talk, text_turns
from tools.tiny_vl.scenes import BarChart, Figures, Picture, Receipt, Sample, Scene, Turn
from tools.tiny_vl.setting import Setting, training_setting

_VISUAL = frozenset(VISUAL_KINDS)
# In training some questions come after one for all there is to see, from which they follow.
_AFTER_ALL = 0.25
_NO_PICTURE = 0.1  # share of the samples with nothing to see that ask about a picture which nobody sent
_WRONG_GRIDS = 0.5  # of the others, in training
_SMALL_PAGE = 112  # pixels; half of the charts and receipts to train on are drawn small, for they are dear
_ALL_BY_KIND = {
    "tallest": ("bar-order", "bar-order", "bar-labels"),
    "shortest": ("bar-order", "bar-order", "bar-labels"),
    "price-of": ("items", "prices"),
    **dict.fromkeys(("is-where", "exists", "count-shape", "count-colour"), ("list",)),
}


def draw_sample(kind: str, rng: Random, held_out_phrasing: bool = False, held_out_fonts: bool = False) -> Sample:
    """One question of that kind, after the turns that it needs; pictures up to 448 pixels, none lost or cut."""
    setting = Setting(held_out_phrasing=held_out_phrasing, held_out_fonts=held_out_fonts)
    return Sample(_turns(kind, setting, rng), setting.system(rng))


def draw_training_sample(rng: Random, progress: float) -> Sample:
    """A sample of the mix at that share of the training, 0 to 1.

    About half of those with one picture ask two or three questions about it; its kind is that of the last.
    """
    setting, kinds = training_setting(progress)
    names, bounds = _mix(kinds, progress < EARLY_UNTIL)
    kind = rng.choices(names, cum_weights=bounds)[0]
    return Sample(_turns(kind, setting, rng), setting.system(rng))


@cache
def _mix(kinds: frozenset[str], early: bool) -> tuple[list[str], list[float]]:
    """Names of the kinds, and their weights added up."""
    known = [kind for kind in KINDS.values() if kind.name in kinds]
    weights = accumulate(kind.early_weight if early else kind.weight for kind in known)
    return [kind.name for kind in known], list(weights)


def _turns(kind: str, setting: Setting, rng: Random) -> tuple[Turn, ...]:
    if kind in _VISUAL:
        return _about_one_picture(kind, setting, rng)
    if kind in ALBUM_KINDS:
        return album_turns(kind, setting, rng)
    if kind in CHATS:
        return CHATS[kind](kind, setting, rng)
    if kind == "blank":
        return (_about_nothing(setting, rng),)
    return text_turns(kind, rng, setting.wording)


def _about_one_picture(kind: str, setting: Setting, rng: Random) -> tuple[Turn, ...]:
    scene, question = _invent(kind, setting, rng)
    largest = setting.largest
    if setting.training and isinstance(scene, BarChart | Receipt) and rng.random() < 0.5:
        largest = min(largest, _SMALL_PAGE)
    picture = draw(scene, kind, rng, largest, setting.held_out_fonts, crop=setting.training)
    if picture.scene is not scene:  # cut
        scene = picture.scene
        question = further_question([], scene, rng) or question
    questions = _questions(scene, question, setting, rng)
    first, *others = questions
    opening = Turn(with_picture(picture, setting.say(first, rng), setting, rng), first.answer, first.kind)
    turns = [opening, *[Turn((setting.say(other, rng),), other.answer, other.kind) for other in others]]
    if setting.training and rng.random() < 0.05:
        turns.insert(0, small_talk(rng, setting.wording))
    return tuple(turns)


def _invent(kind: str, setting: Setting, rng: Random) -> tuple[Scene, Question]:
    if kind in CHART_KINDS and setting.ease > 0 and rng.random() < setting.ease:
        scene = invent_chart(rng, easy=True)
        if question := ask(kind, scene, rng):
            return scene, question
    return invent(kind, rng, setting.longest)


def _questions(scene: Scene, first: Question, setting: Setting, rng: Random) -> list[Question]:
    """The first, in training often with others: after one that lists all, or before some that it does not answer."""
    if not setting.training or first.tells_all:
        return [first]
    if first.kind in _ALL_BY_KIND and rng.random() < _AFTER_ALL:
        everything = _everything(rng.choice(_ALL_BY_KIND[first.kind]), scene, rng)
        return [first] if everything is None else [everything, first]
    questions = [first]
    for _ in range(rng.choices((0, 1, 2), (30, 35, 35))[0]):
        another = further_question(questions, scene, rng)
        if another is not None:
            questions.append(another)
    return questions


def _everything(kind: str, scene: Scene, rng: Random) -> Question | None:
    """A question for all there is to see, None where that is too much or has no order."""
    if isinstance(scene, Figures) and scene.arrangement not in ("row", "column"):
        return None
    return ask(kind, scene, rng)


def _about_nothing(setting: Setting, rng: Random) -> Turn:
    """Any question about one picture, put to blank paper or with no picture at all.

    In training also to a picture that got lost on its way, or to letters whose grid the tower is told wrongly.
    """
    kind = rng.choice(VISUAL_KINDS)
    scene, question = invent(kind, rng, setting.longest)
    if rng.random() < _NO_PICTURE:
        return Turn((setting.say(question, rng, seen_picture(rng)),), "nothing", "blank")
    if setting.training and rng.random() < _WRONG_GRIDS:
        return _about_a_wrong_grid(setting, rng)
    picture: Picture
    if setting.training and rng.random() < 0.6:
        picture = replace(draw(scene, kind, rng, setting.largest), lost=True)
    else:
        picture = draw_blank(rng, setting.largest)
    return Turn(with_picture(picture, setting.say(question, rng), setting, rng), "nothing", "blank")


def _about_a_wrong_grid(setting: Setting, rng: Random) -> Turn:
    """A question about a grid of letters whose tower is told other sides with as many cells: mostly swapped ones."""
    while True:
        kind = rng.choice(("grid-dense", "grid-loose"))
        scene, question = invent(kind, rng, setting.longest)
        picture = draw(scene, kind, rng, setting.largest)
        width, height = processor_size(picture.image.size)
        lines, columns = height // UNIT, width // UNIT
        cells = lines * columns
        others = [
            (side, cells // side)
            for side in range(1, cells + 1)
            if cells % side == 0 and (side, cells // side) != (lines, columns)
        ]
        if (columns, lines) in others and rng.random() < 0.6:
            others = [(columns, lines)]
        if others:
            picture = replace(picture, told=rng.choice(others))
            return Turn(with_picture(picture, setting.say(question, rng), setting, rng), "nothing", "blank")
