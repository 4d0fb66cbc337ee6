"""All phrasings by topic, and how they become what a user says."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random

from tools.tiny_vl import phrases_pages, phrases_places, phrases_talk, phrases_text, phrases_visual
from tools.tiny_vl.phrases import Topic, dress, topics
from tools.tiny_vl.phrases_noise import roughen

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
NUMBERS = ("one", "two", "three", "four", "five", "six")
SHORT_ORDINALS = ("1st", "2nd", "3rd", "4th", "5th", "6th", "7th", "8th")
_NOUNS = ("image", "image", "picture", "photo")

BOOK: dict[str, Topic] = topics(
    phrases_visual.PATTERNS
    | phrases_places.PATTERNS
    | phrases_pages.PATTERNS
    | phrases_text.PATTERNS
    | phrases_talk.PATTERNS
)

_A_LONE_PICTURE = tuple(f"{which} {noun}" for which in ("the", "the", "this") for noun in _NOUNS)
_A_SEEN_PICTURE = tuple(f"{which} {noun}" for which in ("the", "the", "that", "my") for noun in _NOUNS)
_AN_EARLIER_PICTURE = tuple(
    f"the {which} {noun}" for which in ("first", "earlier", "previous", "first") for noun in _NOUNS
)
_BOTH = ("both {}", "the {}", "these {}", "the two {}", "these two {}")


@dataclass(frozen=True, slots=True)
class Wording:
    """How to put things: in phrasings kept out of training, or roughly now and then, as in a hurry."""

    held_out: bool = False
    rough: bool = False


PLAIN, HURRIED = Wording(), Wording(rough=True)
_ROUGH = 0.12  # share of phrasings that are changed in a word or two where the wording may be rough


def say(
    topic: str,
    rng: Random,
    fields: Mapping[str, str] | None = None,
    wording: Wording = PLAIN,
    pic: str | None = None,
) -> str:
    """A phrasing of the topic with its slots filled; with `pic`, one that calls the picture (or pictures) so."""
    draw = BOOK[topic].draw_naming_the_picture if pic else BOOK[topic].draw
    phrase = draw(rng, wording.held_out)
    if wording.rough and rng.random() < _ROUGH:
        phrase = roughen(phrase, topic, rng)
    # A name in first place is quoted from a picture or meant to be echoed: its case is not ours to change.
    quotes = phrase.startswith(("{a}", '"{a}"'))
    text = phrase.format(pic=pic or rng.choice(_A_LONE_PICTURE), pics=pic or both(rng), **(fields or {}))
    return text if quotes else dress(text[0].upper() + text[1:], rng)


_DRAWS = 600  # of a topic's phrasings; what they do not hold is rare


@cache
def usual_phrasings(topic: str) -> tuple[str, ...]:
    """Phrasings of the topic as they come in training, slots left open; the same ones each time."""
    rng = Random(topic)
    return tuple(BOOK[topic].draw(rng) for _ in range(_DRAWS))


@cache
def spoken_words() -> tuple[str, ...]:
    """The words of the phrasings, in small letters and in alphabetic order."""
    texts = (re.sub(r"{\w+}", "", phrase) for topic in BOOK for phrase in usual_phrasings(topic))
    return tuple(sorted({word.lower() for text in texts for word in re.findall("[A-Za-z]+", text)}))


def seen_picture(rng: Random) -> str:
    """The only picture so far, spoken of in a later turn."""
    return rng.choice(_A_SEEN_PICTURE)


def earlier_picture(rng: Random) -> str:
    """The first of two pictures, spoken of after the second has come."""
    return rng.choice(_AN_EARLIER_PICTURE)


def both(rng: Random) -> str:
    return rng.choice(_BOTH).format(rng.choice(_NOUNS) + "s")


def nth(number: int, rng: Random) -> str:
    """The picture of that number, counted from 1: "the second image", "picture 2"."""
    noun, form = rng.choice(_NOUNS), rng.random()
    if form < 0.6:
        return f"the {ORDINALS[number - 1]} {noun}"
    if form < 0.8:
        return f"{noun} {number}"
    if form < 0.87:
        return f"{noun} number {number}"
    if form < 0.94:
        return f"{noun} {rng.choice(('', 'number '))}{NUMBERS[number - 1]}"
    return f"the {SHORT_ORDINALS[number - 1]} {noun}"


def first_or_last(first: bool, rng: Random) -> str:
    words = ("first", "first", "very first") if first else ("last", "last", "final", "very last")
    return f"the {rng.choice(words)} {rng.choice(_NOUNS)}"


def two_of(one: int, other: int, rng: Random) -> str:
    """Two pictures by number: "the first and the third image"."""
    noun = rng.choice(_NOUNS)
    first, second = ORDINALS[one - 1], ORDINALS[other - 1]
    return rng.choice(
        (
            f"the {first} and the {second} {noun}",
            f"the {first} and {second} {noun}s",
            f"{noun}s {one} and {other}",
            f"{noun} {one} and {noun} {other}",
        )
    )
