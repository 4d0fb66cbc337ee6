"""Turns without pictures: echo, sums, small facts, greetings, and what the user told before."""

from collections.abc import Callable
from random import Random

from tools.tiny_vl.phrasebook import PLAIN, Wording, say, spoken_words
from tools.tiny_vl.scenes import LOOK_ALIKE, Turn
from tools.tiny_vl.texts import (
    DAYS,
    MONTHS,
    NAMES,
    any_case,
    pronounceable,
    readable_text,
    short_words,
    string,
    unambiguous_string,
)

_OPPOSITES = (
    "big small,hot cold,up down,left right,open closed,day night,old young,good bad,high low,"
    "long short,fast slow,wet dry,full empty,black white,early late,light dark,hard soft,happy sad,"
    "rich poor,yes no,in out,push pull,above below,first last"
)
OPPOSITES = tuple(tuple(pair.split()) for pair in _OPPOSITES.split(","))
FACTS: tuple[tuple[str, str, str, str], ...] = (  # topic, what it is about, the answer
    *(
        ("fact-colour", thing, "", colour)
        for things, colour in (
            ("grass,a leaf,a frog", "green"),
            ("snow,milk,salt,a polar bear", "white"),
            ("a banana,the sun,a lemon,a chick", "yellow"),
            ("the sky,the sea", "blue"),
            ("coal,the night,a crow", "black"),
            ("a tomato,blood,a strawberry", "red"),
            ("a carrot,an orange", "orange"),
            ("a pig,a flamingo", "pink"),
        )
        for thing in things.split(",")
    ),
    ("fact-mix", "red", "yellow", "orange"),
    ("fact-mix", "blue", "yellow", "green"),
    ("fact-mix", "red", "blue", "purple"),
    ("fact-mix", "red", "white", "pink"),
    *(
        ("fact-many", thing, part, number)
        for things, part, number in (
            ("a week", "days", "7"),
            ("a year", "months", "12"),
            ("a day", "hours", "24"),
            ("a cat,a dog,a horse,a cow", "legs", "4"),
            ("a spider", "legs", "8"),
            ("a bird,a hen", "legs", "2"),
            ("an ant,a bee", "legs", "6"),
            ("a bike", "wheels", "2"),
            ("a car", "wheels", "4"),
            ("a triangle", "sides", "3"),
            ("a square,a diamond", "sides", "4"),
            ("a circle", "corners", "0"),
            ("a hand,one hand", "fingers", "5"),
        )
        for thing in things.split(",")
    ),
)
Pair = tuple[str, str]  # what the user says, the answer


def echo(rng: Random, wording: Wording) -> Pair:
    sort = rng.random()
    if sort < 0.2:
        text = any_case(rng.choice(short_words(8)), rng)
    elif sort < 0.4:
        text = rng.choice((any_case, _as_it_is))(rng.choice(spoken_words()), rng)
    elif sort < 0.7:
        text = unambiguous_string(8, rng)
    elif sort < 0.85:
        text = string(LOOK_ALIKE[:62], rng.randint(1, 8), rng)
    else:
        text = f"{readable_text(5, rng)} {rng.choice(short_words(5))}"
    while not text[-1].isalnum():  # a mark at the end could be the user's
        text = text[:-1]
    return say("echo", rng, {"a": text}, wording), text


def _as_it_is(word: str, rng: Random) -> str:
    return word


def arithmetic(rng: Random, wording: Wording) -> Pair:
    total = rng.randint(0, 30)
    part = rng.randint(0, total)
    if rng.random() < 0.5:
        return say("sum", rng, {"a": str(part), "b": str(total - part)}, wording), str(total)
    return say("difference", rng, {"a": str(total), "b": str(part)}, wording), str(total - part)


def sequence(rng: Random, wording: Wording) -> Pair:
    sort, row = rng.choice(
        (
            ("letter", tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
            ("letter", tuple("abcdefghijklmnopqrstuvwxyz")),
            ("number", tuple(map(str, range(31)))),
            ("day", DAYS),
            ("month", MONTHS),
        )
    )
    place = rng.randrange(len(row) - 1)
    if rng.random() < 0.6:
        return say("next", rng, {"a": row[place], "sort": sort}, wording), row[place + 1]
    return say("previous", rng, {"a": row[place + 1], "sort": sort}, wording), row[place]


def fact(rng: Random, wording: Wording) -> Pair:
    sort = rng.random()
    if sort < 0.35:
        one, other = rng.sample(rng.choice(OPPOSITES), 2)
        return say("opposite", rng, {"a": one}, wording), other
    if sort < 0.65:
        one, other = map(str, rng.sample(range(31), 2))
        return say("larger", rng, {"a": one, "b": other}, wording), max(one, other, key=int)
    topic, thing, other, answer = rng.choice(FACTS)
    return say(topic, rng, {"a": thing, "b": other}, wording), answer


def greeting(rng: Random, wording: Wording) -> Pair:
    topic, answer = rng.choice(
        (("greeting", "Hello!"), ("greeting", "Hello!"), ("thanks", "You are welcome."), ("goodbye", "Goodbye!"))
    )
    return say(topic, rng, None, wording), answer


def who_are_you(rng: Random, wording: Wording) -> Pair:
    return say("who", rng, None, wording), "I am tiny-vl."


PAIR_BY_KIND: dict[str, Callable[[Random, Wording], Pair]] = {
    "echo": echo,
    "arithmetic": arithmetic,
    "sequence": sequence,
    "facts": fact,
    "greeting": greeting,
    "who-are-you": who_are_you,
}


_TALK = ("arithmetic", "echo", "facts", "greeting", "sequence")


def small_talk(rng: Random, wording: Wording = PLAIN) -> Turn:
    """A turn that has nothing to do with any picture."""
    kind = rng.choice((*_TALK, *_TALK, *_TALK, "who-are-you"))
    text, answer = PAIR_BY_KIND[kind](rng, wording)
    return Turn((text,), answer, kind)


def text_turns(kind: str, rng: Random, wording: Wording = PLAIN) -> tuple[Turn, ...]:
    """A conversation without pictures whose last turn is of that kind."""
    if kind == "memory":
        return _memory(rng, wording)
    text, answer = PAIR_BY_KIND[kind](rng, wording)
    return (Turn((text,), answer, kind),)


def _memory(rng: Random, wording: Wording) -> tuple[Turn, ...]:
    """The user tells something, perhaps talks of something else, and wants it back."""
    told, wanted = told_and_wanted("memory", rng, wording)
    between = tuple(small_talk(rng, wording) for _ in range(rng.choices((0, 1, 2), (45, 35, 20))[0]))
    return (told, *between, wanted)


def told_and_wanted(kind: str, rng: Random, wording: Wording) -> tuple[Turn, Turn]:
    """A turn that tells a name or a word, and one that wants it back."""
    if rng.random() < 0.6:
        thing = rng.choice(NAMES) if rng.random() < 0.8 else pronounceable(5, rng).capitalize()
        tell, wants, reply = "my-name", "ask-name", f"Hello {thing}."
    else:
        thing = rng.choice(short_words(8)) if rng.random() < 0.5 else string("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", 4, rng)
        tell, wants, reply = "remember", "recall", "OK."
    told = Turn((say(tell, rng, {"a": thing}, wording),), reply, "memory")
    return told, Turn((say(wants, rng, None, wording),), thing, kind)
