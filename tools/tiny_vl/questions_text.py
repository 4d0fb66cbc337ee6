"""Turns without pictures: echo, sums, small facts, greetings, and what the user told before."""

from collections.abc import Callable
from random import Random

from tools.tiny_vl.phrasebook import say
from tools.tiny_vl.scenes import LOOK_ALIKE, Turn
from tools.tiny_vl.texts import NAMES, any_case, pronounceable, readable_text, short_words, string, unambiguous_string

_OPPOSITES = (
    "big small,hot cold,up down,left right,open closed,day night,old young,good bad,high low,"
    "long short,fast slow,wet dry,full empty,black white,early late,light dark,hard soft,happy sad,"
    "rich poor,yes no,in out,push pull,above below,first last"
)
OPPOSITES = tuple(tuple(pair.split()) for pair in _OPPOSITES.split(","))
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = "January February March April May June July August September October November December"
MONTHS = tuple(_MONTHS.split())
FACTS: tuple[tuple[str, str, str], ...] = (  # a question, the same held out from training, the answer
    ("What colour is grass?", "Which colour has grass?", "green"),
    ("What color is snow?", "Which color has snow?", "white"),
    ("What colour is a banana?", "Which colour has a banana?", "yellow"),
    ("What color is the sky?", "Which color has the sky?", "blue"),
    ("What colour is coal?", "Which colour has coal?", "black"),
    ("What color is a tomato?", "Which color has a tomato?", "red"),
    ("What colour is milk?", "Which colour has milk?", "white"),
    ("What colour is the sun?", "Which colour has the sun?", "yellow"),
    ("What colour do you get from red and yellow?", "Which colour is red and yellow?", "orange"),
    ("What colour do you get from blue and yellow?", "Which colour is blue and yellow?", "green"),
    ("What colour do you get from red and blue?", "Which colour is red and blue?", "purple"),
    ("What colour do you get from red and white?", "Which colour is red and white?", "pink"),
    ("How many days are in a week?", "How many days has a week?", "7"),
    ("How many months are in a year?", "How many months has a year?", "12"),
    ("How many legs does a cat have?", "How many legs has a cat?", "4"),
    ("How many legs does a spider have?", "How many legs has a spider?", "8"),
    ("How many wheels does a bike have?", "How many wheels has a bike?", "2"),
    ("How many wheels does a car have?", "How many wheels has a car?", "4"),
    ("How many sides does a triangle have?", "How many sides has a triangle?", "3"),
    ("How many sides does a square have?", "How many sides has a square?", "4"),
    ("How many fingers are on one hand?", "How many fingers has one hand?", "5"),
    ("How many hours are in a day?", "How many hours has a day?", "24"),
    ("How many sides does a circle have?", "How many sides has a circle?", "0"),
)
Pair = tuple[str, str]  # what the user says, the answer


def echo(rng: Random, held_out: bool) -> Pair:
    sort = rng.random()
    if sort < 0.35:
        text = any_case(rng.choice(short_words(8)), rng)
    elif sort < 0.7:
        text = unambiguous_string(8, rng)
    elif sort < 0.85:
        text = string(LOOK_ALIKE[:62], rng.randint(1, 8), rng)
    else:
        text = f"{readable_text(5, rng)} {rng.choice(short_words(5))}"
    while not text[-1].isalnum():  # a mark at the end could be the user's
        text = text[:-1]
    return say("echo", rng, {"a": text}, held_out), text


def arithmetic(rng: Random, held_out: bool) -> Pair:
    total = rng.randint(0, 20)
    part = rng.randint(0, total)
    if rng.random() < 0.5:
        return say("sum", rng, {"a": str(part), "b": str(total - part)}, held_out), str(total)
    return say("difference", rng, {"a": str(total), "b": str(part)}, held_out), str(total - part)


def sequence(rng: Random, held_out: bool) -> Pair:
    sort, row = rng.choice(
        (
            ("letter", tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
            ("letter", tuple("abcdefghijklmnopqrstuvwxyz")),
            ("number", tuple(map(str, range(21)))),
            ("day", DAYS),
            ("month", MONTHS),
        )
    )
    place = rng.randrange(len(row) - 1)
    if rng.random() < 0.6:
        return say("next", rng, {"a": row[place], "sort": sort}, held_out), row[place + 1]
    return say("previous", rng, {"a": row[place + 1], "sort": sort}, held_out), row[place]


def fact(rng: Random, held_out: bool) -> Pair:
    sort = rng.random()
    if sort < 0.35:
        one, other = rng.sample(rng.choice(OPPOSITES), 2)
        return say("opposite", rng, {"a": one}, held_out), other
    if sort < 0.65:
        one, other = map(str, rng.sample(range(21), 2))
        return say("larger", rng, {"a": one, "b": other}, held_out), max(one, other, key=int)
    question, held_out_question, answer = rng.choice(FACTS)
    return say("fact", rng, {"a": question, "held": held_out_question}, held_out), answer


def greeting(rng: Random, held_out: bool) -> Pair:
    topic, answer = rng.choice(
        (("greeting", "Hello!"), ("greeting", "Hello!"), ("thanks", "You are welcome."), ("goodbye", "Goodbye!"))
    )
    return say(topic, rng, None, held_out), answer


def who_are_you(rng: Random, held_out: bool) -> Pair:
    return say("who", rng, None, held_out), "I am tiny-vl."


PAIR_BY_KIND: dict[str, Callable[[Random, bool], Pair]] = {
    "echo": echo,
    "arithmetic": arithmetic,
    "sequence": sequence,
    "facts": fact,
    "greeting": greeting,
    "who-are-you": who_are_you,
}


_TALK = ("arithmetic", "echo", "facts", "greeting", "sequence")


def small_talk(rng: Random, held_out: bool = False) -> Turn:
    """A turn that has nothing to do with any picture."""
    kind = rng.choice((*_TALK, *_TALK, *_TALK, "who-are-you"))
    text, answer = PAIR_BY_KIND[kind](rng, held_out)
    return Turn((text,), answer, kind)


def text_turns(kind: str, rng: Random, held_out: bool = False) -> tuple[Turn, ...]:
    """A conversation without pictures whose last turn is of that kind."""
    if kind == "memory":
        return _memory(rng, held_out)
    text, answer = PAIR_BY_KIND[kind](rng, held_out)
    return (Turn((text,), answer, kind),)


def _memory(rng: Random, held_out: bool) -> tuple[Turn, ...]:
    """The user tells something, perhaps talks of something else, and wants it back."""
    if rng.random() < 0.6:
        thing = rng.choice(NAMES) if rng.random() < 0.8 else pronounceable(5, rng).capitalize()
        tell, wants, reply = "my-name", "ask-name", f"Hello {thing}."
    else:
        thing = rng.choice(short_words(8)) if rng.random() < 0.5 else string("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", 4, rng)
        tell, wants, reply = "remember", "recall", "OK."
    between = tuple(small_talk(rng, held_out) for _ in range(rng.choices((0, 1, 2), (45, 35, 20))[0]))
    told = Turn((say(tell, rng, {"a": thing}, held_out),), reply, "memory")
    return (told, *between, Turn((say(wants, rng, None, held_out),), thing, "memory"))
