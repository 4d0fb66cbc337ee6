"""How users put their questions: patterns that expand to many phrasings, some of them kept out of training.

A pattern holds alternatives, `What (is|do you see) in {pic}?`, macros such as `@noun`, and slots that a question
fills. The slot `pic` names the picture, so one pattern serves a lone picture ("the image"), one of several ("the second
photo") and an earlier one. A pattern that begins with `~` is held out from training.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Self

MACROS = {
    "@noun": "(image|picture|photo)",
    "@nouns": "(images|pictures|photos)",
    "@shape": "(shape|figure|object)",
    "@shapes": "(shapes|figures|objects)",
    "@colour": "(colour|color)",
    "@colours": "(colours|colors)",
    "@is": "( is|'s)",
    "@which": "(Which|What)",
    "@thispic": "(in {pic}|on {pic}|)",
    "@ofpic": "(of {pic}|in {pic}|)",
    "@tell": "(Tell me|Say|Name)",
}
_BLANKS = re.compile(r" +([?.,:!]|(?= ))")
_PUNCTUATION = re.compile(r"[^\w()|]")
Piece = str | tuple["str | Pieces", ...]  # text, or alternatives
Pieces = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Phrasings in one line: too many to list, so each is composed when it is drawn."""

    text: str
    pieces: Pieces

    @classmethod
    def of(cls, text: str) -> Self:
        for macro in sorted(MACROS, key=len, reverse=True):
            text = text.replace(macro, MACROS[macro])
        return cls(text, (_parsed(iter(f"{text})")),))

    def draw(self, rng: Random) -> str:
        return _BLANKS.sub(r"\1", _drawn(self.pieces, rng)).strip()

    def phrasings(self) -> list[str]:
        """Every one of them: for patterns of few."""
        return sorted({_BLANKS.sub(r"\1", phrase).strip() for phrase in _listed(self.pieces)})

    def has(self, phrase: str) -> bool:
        """Whether the phrase, its slots left open, is one of them."""
        shape = _PUNCTUATION.sub(lambda mark: re.escape(mark[0]), self.text.replace(" ", ""))
        return re.fullmatch(shape, phrase.replace(" ", "")) is not None


def _parsed(characters: Iterator[str]) -> tuple[str | Pieces, ...]:
    """The alternatives up to the parenthesis that closes them."""
    alternatives: list[str | Pieces] = []
    pieces: list[Piece] = [""]
    for character in characters:
        if character == "(":
            pieces += [_parsed(characters), ""]
        elif character in "|)":
            kept = tuple(piece for piece in pieces if piece)
            # Most alternatives are plain text, and drawing them shall cost nothing.
            plain = [piece for piece in kept if isinstance(piece, str)]
            alternatives.append(kept if len(plain) < len(kept) else "".join(plain))
            pieces = [""]
            if character == ")":
                break
        else:
            pieces[-1] = f"{pieces[-1]}{character}"
    return tuple(alternatives)


def _drawn(pieces: Pieces, rng: Random) -> str:
    text = ""
    for piece in pieces:
        chosen = piece if isinstance(piece, str) else piece[int(rng.random() * len(piece))]
        text += chosen if isinstance(chosen, str) else _drawn(chosen, rng)
    return text


def _listed(pieces: Pieces) -> list[str]:
    choices = [
        [piece]
        if isinstance(piece, str)
        else [text for part in piece for text in ([part] if isinstance(part, str) else _listed(part))]
        for piece in pieces
    ]
    return ["".join(parts) for parts in product(*choices)]


@dataclass(frozen=True, slots=True)
class Topic:
    """The phrasings of one question."""

    trained: tuple[Pattern, ...]
    held_out: tuple[Pattern, ...]

    def draw(self, rng: Random, held_out: bool = False) -> str:
        patterns = self.held_out if held_out else self.trained
        return patterns[int(rng.random() * len(patterns))].draw(rng)

    def draw_naming_the_picture(self, rng: Random, held_out: bool = False) -> str:
        """One that says which picture is meant, or which pictures (slot `pics`); there must be some."""
        while "{pic" not in (phrase := self.draw(rng, held_out)):
            pass
        return phrase


def topics(patterns: Mapping[str, Sequence[str]]) -> dict[str, Topic]:
    return {
        name: Topic(
            tuple(Pattern.of(line) for line in lines if not line.startswith("~")),
            tuple(Pattern.of(line[1:]) for line in lines if line.startswith("~")),
        )
        for name, lines in patterns.items()
    }


POLITE_COMMANDS = (
    *("Please {}", "Please {}", "Now {}", "Please, {}", "Could you {}?", "Can you {}?", "Would you {}?"),
    *("Kindly {}", "Just {}", "I want you to {}", "You should {}", "Will you please {}?", "Go on and {}"),
)
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
    "Next question: {}",
    "One question: {}",
    "Excuse me, {}",
    "Sorry, {}",
    "Then {}",
    "Look closely: {}",
)
_COMMAND_WORDS = (
    "Read Say Tell Name Give Describe Repeat Copy List Count Write Look Type Show Compute Take Add Find "
    "State Report Check Answer Let Compare Sort Order Print"
)
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
