"""Samples: whole conversations of each kind, for evaluation and for training."""

from dataclasses import replace
from itertools import accumulate
from random import Random

from tools.tiny_vl.albums import ALBUM_KINDS, album_turns
from tools.tiny_vl.chats import chat_turns, earlier_turns
from tools.tiny_vl.draw import draw_blank
from tools.tiny_vl.families import KINDS
from tools.tiny_vl.layout import with_picture
from tools.tiny_vl.question import Question
from tools.tiny_vl.questions import VISUAL_KINDS, draw, further_question, invent
from tools.tiny_vl.questions_text import small_talk, text_turns
from tools.tiny_vl.scenes import Picture, Sample, Scene, Turn
from tools.tiny_vl.setting import Setting, training_setting

_VISUAL = frozenset(VISUAL_KINDS)


def draw_sample(kind: str, rng: Random, held_out_phrasing: bool = False, held_out_fonts: bool = False) -> Sample:
    """One question of that kind, after the turns that it needs; pictures up to 448 pixels, none lost or cut."""
    setting = Setting(held_out_phrasing=held_out_phrasing, held_out_fonts=held_out_fonts)
    return Sample(_turns(kind, setting, rng), setting.system(rng))


def draw_training_sample(rng: Random, progress: float) -> Sample:
    """A sample of the mix at that share of the training, 0 to 1.

    About half of those with one picture ask two or three questions about it; its kind is that of the last.
    """
    setting, kinds = training_setting(progress)
    names, bounds = _MIX[kinds] if kinds in _MIX else _mix(kinds)
    kind = rng.choices(names, cum_weights=bounds)[0]
    return Sample(_turns(kind, setting, rng), setting.system(rng))


def _mix(kinds: frozenset[str]) -> tuple[list[str], list[float]]:
    """Names of the kinds, and their weights added up."""
    names = [name for name in KINDS if name in kinds]
    return names, list(accumulate(KINDS[name].weight for name in names))


_MIX = {frozenset(KINDS): _mix(frozenset(KINDS))}


def _turns(kind: str, setting: Setting, rng: Random) -> tuple[Turn, ...]:
    if kind in _VISUAL:
        return _about_one_picture(kind, setting, rng)
    if kind in ALBUM_KINDS:
        return album_turns(kind, setting, rng)
    if kind == "earlier-turn":
        return earlier_turns(kind, setting, rng)
    if KINDS[kind].family == "multi-turn":
        return chat_turns(kind, setting, rng)
    if kind == "blank":
        return (_about_nothing(setting, rng),)
    return text_turns(kind, rng, setting.held_out_phrasing)


def _about_one_picture(kind: str, setting: Setting, rng: Random) -> tuple[Turn, ...]:
    scene, question = invent(kind, rng, setting.longest)
    picture = draw(scene, kind, rng, setting.largest, setting.held_out_fonts, crop=setting.training)
    if picture.scene is not scene:  # cut
        scene = picture.scene
        question = further_question([], scene, rng) or question
    questions = _questions(scene, question, setting, rng)
    first, *others = questions
    opening = Turn(with_picture(picture, setting.say(first, rng), setting, rng), first.answer, first.kind)
    turns = [opening, *[Turn((setting.say(other, rng),), other.answer, other.kind) for other in others]]
    if setting.training and rng.random() < 0.05:
        turns.insert(0, small_talk(rng))
    return tuple(turns)


def _questions(scene: Scene, first: Question, setting: Setting, rng: Random) -> list[Question]:
    """The first, in training often with others, in an order in which none gives away the next."""
    questions = [first]
    wanted = rng.choices((0, 1, 2), (30, 35, 35))[0] if setting.training and not first.tells_all else 0
    for _ in range(wanted):
        another = further_question(questions, scene, rng)
        if another is not None:
            questions.append(another)
    return questions


def _about_nothing(setting: Setting, rng: Random) -> Turn:
    """Any question about one picture, put to blank paper; in training also to a picture that got lost on its way."""
    kind = rng.choice(VISUAL_KINDS)
    scene, question = invent(kind, rng, setting.longest)
    picture: Picture
    if setting.training and rng.random() < 0.6:
        picture = replace(draw(scene, kind, rng, setting.largest), lost=True)
    else:
        picture = draw_blank(rng, setting.largest)
    return Turn(with_picture(picture, setting.say(question, rng), setting, rng), "nothing", "blank")
