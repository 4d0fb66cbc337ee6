"""How users put their questions: patterns that expand to many phrasings, some of them kept out of training.

A pattern holds alternatives, `What (is|do you see) in {pic}?`, macros such as `@noun`, and slots that a question
fills. The slot `pic` names the picture, so one pattern serves a lone picture ("the image"), one of several ("the second
photo") and an earlier one. A pattern that begins with `~` is held out from training.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

MACROS = {
    "@noun": "(image|picture|photo)",
    "@nouns": "(images|pictures|photos)",
    "@shape": "(shape|figure|object)",
    "@shapes": "(shapes|figures|objects)",
    "@colour": "colo(u|)r",
    "@is": "( is|'s)",
    "@tell": "(Tell me|Say|Name)",
}
_GROUP = re.compile(r"\(([^()]*)\)")


def expand(pattern: str) -> list[str]:
    """Every phrasing of a pattern, slots left open."""
    for macro in sorted(MACROS, key=len, reverse=True):
        pattern = pattern.replace(macro, MACROS[macro])
    return _alternatives(pattern)


def _alternatives(pattern: str) -> list[str]:
    group = _GROUP.search(pattern)
    if group is None:
        return [re.sub(r" +([?.,]|(?= ))", r"\1", pattern).strip()]
    before, after = pattern[: group.start()], pattern[group.end() :]
    return [phrase for choice in group[1].split("|") for phrase in _alternatives(before + choice + after)]


@dataclass(frozen=True, slots=True)
class Topic:
    """The phrasings of one question, a tuple for each pattern."""

    trained: tuple[tuple[str, ...], ...]
    held_out: tuple[tuple[str, ...], ...]

    def draw(self, rng: Random, held_out: bool = False) -> str:
        return rng.choice(rng.choice(self.held_out if held_out else self.trained))

    def phrasings(self, held_out: bool = False) -> list[str]:
        return [phrase for phrases in (self.held_out if held_out else self.trained) for phrase in phrases]

    def naming_the_picture(self) -> "Topic":
        """Only the phrasings that say which picture is meant, or which pictures (slot `pics`)."""
        return Topic(_with_slot(self.trained), _with_slot(self.held_out))


def _with_slot(patterns: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    kept = (tuple(phrase for phrase in phrases if "{pic" in phrase) for phrases in patterns)
    return tuple(phrases for phrases in kept if phrases)


def topics(patterns: Mapping[str, Sequence[str]]) -> dict[str, Topic]:
    return {
        name: Topic(
            tuple(tuple(expand(line)) for line in lines if not line.startswith("~")),
            tuple(tuple(expand(line[1:])) for line in lines if line.startswith("~")),
        )
        for name, lines in patterns.items()
    }


POLITE_COMMANDS = ("Please {}", "Please {}", "Now {}", "Please, {}", "Could you {}?", "Can you {}?")
POLITE_QUESTIONS = (
    "Please tell me: {}",
    "Tell me, {}",
    "Hi! {}",
    "Hello, {}",
    "Now, {}",
    "And {}",
    "So {}",
    "Question: {}",
    "OK, {}",
)
_COMMAND_WORDS = "Read Say Tell Name Give Describe Repeat Copy List Count Write Look Type Show Compute Take Add Find"
_COMMANDS = frozenset(_COMMAND_WORDS.split())


def dress(phrase: str, rng: Random) -> str:
    """The phrase as different people type it: with a please, without a capital, without its mark at the end."""
    roll = rng.random()
    if roll < 0.55:
        return phrase
    if roll < 0.67:
        return _polite(phrase, rng)
    if roll < 0.80:
        phrase = _small_first(phrase)
    if roll > 0.74 and phrase[-1] in "?.":
        return phrase[:-1]
    return phrase


def _small_first(phrase: str) -> str:
    """No small letter for names in capitals, nor for "I" and "I'm"."""
    return phrase[0].lower() + phrase[1:] if phrase[1:2].islower() or phrase.startswith("A ") else phrase


def _polite(phrase: str, rng: Random) -> str:
    if phrase.split(" ", 1)[0] in _COMMANDS and phrase.endswith("."):
        frame = rng.choice(POLITE_COMMANDS)
        return frame.format(_small_first(phrase[:-1])) + ("" if frame.endswith("?") else ".")
    if not phrase.endswith("?"):
        return phrase
    if rng.random() < 0.25:
        return phrase[:-1] + rng.choice((", please?", " please?", "? Thanks.", "? Thank you!"))
    frame = rng.choice(POLITE_QUESTIONS)
    return frame.format(phrase if frame[-4:-2] in (": ", "! ") or frame.endswith(": {}") else _small_first(phrase))
