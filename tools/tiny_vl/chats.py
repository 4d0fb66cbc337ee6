"""Conversations that come back to a picture of an earlier turn."""

from random import Random

from tools.tiny_vl.album_scenes import anything, what_it_shows
from tools.tiny_vl.albums import draw_all
from tools.tiny_vl.families import KINDS
from tools.tiny_vl.layout import with_picture
from tools.tiny_vl.phrasebook import earlier_picture, first_or_last, nth, seen_picture
from tools.tiny_vl.questions import VISUAL_KINDS, draw, further_question, invent
from tools.tiny_vl.questions_text import small_talk
from tools.tiny_vl.scenes import Picture, Sign, Turn
from tools.tiny_vl.setting import Setting

_CHAT_KINDS = tuple(kind for kind in VISUAL_KINDS if KINDS[kind].family != "extras")


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
    talk = tuple(small_talk(rng, setting.held_out_phrasing) for _ in range(rng.choices((0, 1, 2), (45, 40, 15))[0]))
    between = (*talk, _interruption(setting, rng)) if switch else talk
    pic = earlier_picture(rng) if switch else seen_picture(rng) if rng.random() < 0.7 else None
    return (first, *between, Turn((setting.say(another, rng, pic),), another.answer, kind))


def _interruption(setting: Setting, rng: Random) -> Turn:
    scene = anything(rng, setting)
    question = what_it_shows("read" if isinstance(scene, Sign) else "name", scene)
    picture = draw(scene, "read", rng, setting.side(2, rng), setting.held_out_fonts)
    return Turn(with_picture(picture, setting.say(question, rng), setting, rng), question.answer, question.kind)
