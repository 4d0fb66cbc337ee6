"""Conversations that come back to a picture of an earlier turn."""

from collections.abc import Callable
from random import Random

from tools.tiny_vl.album_scenes import anything, what_it_shows
from tools.tiny_vl.albums import draw_all
from tools.tiny_vl.families import KINDS
from tools.tiny_vl.layout import with_picture
from tools.tiny_vl.phrasebook import earlier_picture, first_or_last, nth, seen_picture
from tools.tiny_vl.question import Question
from tools.tiny_vl.questions import VISUAL_KINDS, draw, further_question, invent
from tools.tiny_vl.questions_text import small_talk, told_and_wanted
from tools.tiny_vl.scenes import Picture, Scene, Sign, Turn
from tools.tiny_vl.setting import Setting

_CHAT_KINDS = tuple(kind for kind in VISUAL_KINDS if KINDS[kind].family != "extras")
_AGAIN_KINDS = (  # whose questions name nothing, or one of a few things, so that they suit many a scene
    *("read", "read", "read-words", "name", "name", "shape-of", "colour-of", "list", "count-all", "count-shape"),
    *("count-colour", "edge", "colour-of-shape", "shape-of-colour", "tallest", "shortest", "total", "total"),
)


def earlier_turns(kind: str, setting: Setting, rng: Random) -> tuple[Turn, ...]:
    """Pictures over several turns; the last turn has none and asks about one that was only looked at."""
    scenes = [anything(rng, setting) for _ in range(rng.choices((2, 3, 4), (55, 30, 15))[0])]
    pictures = draw_all(scenes, setting, rng)
    subject = rng.randrange(len(scenes))
    turns = []
    for place, (scene, picture) in enumerate(zip(scenes, pictures, strict=True)):
        if place == subject or rng.random() < 0.5:
            turns.append(_stored(picture, setting, rng))
        else:
            question = what_it_shows("read" if isinstance(scene, Sign) else "name", scene)
            parts = with_picture(picture, setting.say(question, rng), setting, rng)
            turns.append(Turn(parts, question.answer, question.kind))
    question = what_it_shows(kind, scenes[subject])
    pic = first_or_last(subject == 0, rng) if subject in (0, len(scenes) - 1) and rng.random() < 0.3 else None
    return (*turns, Turn((setting.say(question, rng, pic or nth(subject + 1, rng)),), question.answer, kind))


def _stored(picture: Picture, setting: Setting, rng: Random) -> Turn:
    """A picture with nothing asked."""
    return Turn(with_picture(picture, setting.phrase("store", rng), setting, rng), "OK.", "memory")


def chat_turns(kind: str, setting: Setting, rng: Random) -> tuple[Turn, ...]:
    """chat-again: two questions about a picture; chat-switch: the second comes after another picture."""
    visual = rng.choice(_CHAT_KINDS)
    scene, question = invent(visual, rng, setting.longest)
    switch = kind == "chat-switch"
    picture = draw(scene, visual, rng, setting.side(1 + switch, rng), setting.held_out_fonts)
    another = further_question([question], scene, rng)
    if another is None:
        first, another = _stored(picture, setting, rng), question
    else:
        first = Turn(with_picture(picture, setting.say(question, rng), setting, rng), question.answer, visual)
    talk = tuple(small_talk(rng, setting.wording) for _ in range(rng.choices((0, 1, 2), (45, 40, 15))[0]))
    between = (*talk, _interruption(setting, rng)) if switch else talk
    pic = earlier_picture(rng) if switch else seen_picture(rng) if rng.random() < 0.7 else None
    return (first, *between, Turn((setting.say(another, rng, pic),), another.answer, kind))


def memory_turns(kind: str, setting: Setting, rng: Random) -> tuple[Turn, ...]:
    """The user tells a name or a word before pictures come, or between them, and wants it back after them."""
    told, wanted = told_and_wanted(kind, rng, setting.wording)
    turns = [_interruption(setting, rng) for _ in range(rng.choices((1, 2, 3), (60, 30, 10))[0])]
    turns.insert(rng.randint(0, 1), told)
    if rng.random() < 0.3 or turns[-1] is told:
        turns.append(small_talk(rng, setting.wording) if rng.random() < 0.5 else _interruption(setting, rng))
    return (*turns, wanted)


def again_turns(kind: str, setting: Setting, rng: Random) -> tuple[Turn, ...]:
    """A question about a picture, then another picture or two with nothing but "And this one?"."""
    visual = rng.choice(_AGAIN_KINDS)
    scene, question = invent(visual, rng, setting.longest)
    largest, fonts = setting.side(2, rng), setting.held_out_fonts
    picture = draw(scene, visual, rng, largest, fonts)
    turns = [Turn(with_picture(picture, setting.say(question, rng), setting, rng), question.answer, visual)]
    for _ in range(rng.choices((1, 2), (80, 20))[0]):
        scene, question = _alike(visual, question, setting, rng)
        picture = draw(scene, visual, rng, largest, fonts)
        turns.append(Turn(with_picture(picture, setting.phrase("again", rng), setting, rng), question.answer, kind))
    return tuple(turns)


def _alike(visual: str, question: Question, setting: Setting, rng: Random) -> tuple[Scene, Question]:
    """Another scene that the very question can be asked about."""
    while True:
        scene, other = invent(visual, rng, setting.longest)
        if (other.topic, other.fields) == (question.topic, question.fields):
            return scene, other


def _interruption(setting: Setting, rng: Random) -> Turn:
    scene = anything(rng, setting)
    question = what_it_shows("read" if isinstance(scene, Sign) else "name", scene)
    picture = draw(scene, "read", rng, setting.side(2, rng), setting.held_out_fonts)
    return Turn(with_picture(picture, setting.say(question, rng), setting, rng), question.answer, question.kind)


CHATS: dict[str, Callable[[str, Setting, Random], tuple[Turn, ...]]] = {
    "earlier-turn": earlier_turns,
    "chat-again": chat_turns,
    "chat-switch": chat_turns,
    "chat-memory": memory_turns,
    "chat-next": again_turns,
}
