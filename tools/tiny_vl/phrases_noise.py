"""Words as people type them in a hurry: a dropped article, another word for the same, a slip of the fingers."""

from random import Random

_SYNONYMS = {
    "image": ("pic", "picture", "screen", "photo"),
    "picture": ("pic", "image", "drawing"),
    "photo": ("pic", "image", "shot"),
    "images": ("pics", "photos", "pictures"),
    "pictures": ("pics", "images"),
    "photos": ("pics", "images"),
    "you": ("u", "you"),
    "please": ("pls", "kindly"),
    "and": ("&", "and also"),
    "is": ("is", "would be"),
    "are": ("are", "were"),
    "number": ("no.", "nr"),
    "column": ("col", "col."),
    "tallest": ("biggest", "longest"),
    "shortest": ("smallest", "lowest"),
    "colour": ("color",),
    "color": ("colour",),
    "Which": ("What",),
    "which": ("what",),
    "see": ("notice", "find", "make out"),
    "show": ("display", "have"),
    "shows": ("displays", "has"),
    "text": ("writing", "words"),
    "written": ("printed",),
    "receipt": ("bill", "slip"),
    "shape": ("shape",),
    "figure": ("thing", "item"),
    "figures": ("things", "items"),
    "objects": ("things", "items"),
    "same": ("same", "very same"),
    "want": ("wish", "like"),
    "Can": ("Could",),
    "know": ("learn",),
}
_ARTICLES = ("the", "a", "an")
_BEFORE = ("Well,", "Um,", "Hmm,", "So,", "OK,", "Alright,", "Sorry,", "Excuse me,", "Quick question:", "Next:", "Hey,")
_BEHIND = (" please", ", please", " for me", " now", " then", " exactly", " by the way", " if you can", " here")
_LONG = 5  # letters of a word from which a slip leaves it legible
# What is told or must be repeated ends where the user's words end: nothing may be put behind it.
_OPEN_ENDED = frozenset(
    ("echo", "remember", "my-name", "greeting", "thanks", "goodbye", "store", "lead-in", "lead-ins")
)


def roughen(phrase: str, topic: str, rng: Random) -> str:
    """The phrase, its slots untouched, with one to two such changes."""
    for _ in range(1 if rng.random() < 0.7 else 2):
        sort = rng.random()
        if sort < 0.2:
            phrase = _without_article(phrase, rng)
        elif sort < 0.45:
            phrase = _with_synonym(phrase, rng)
        elif sort < 0.75:
            phrase = _with_slip(phrase, rng)
        else:
            phrase = _with_filler(phrase, topic, rng)
    return phrase


def _changed(phrase: str, places: list[int], rng: Random, change: dict[str, tuple[str, ...]] | None) -> str:
    """One of the words at those places taken out, or exchanged by the mapping."""
    if not places:
        return phrase
    words, place = phrase.split(" "), rng.choice(places)
    words[place : place + 1] = [] if change is None else [rng.choice(change[words[place]])]
    return " ".join(words)


def _without_article(phrase: str, rng: Random) -> str:
    words = phrase.split(" ")
    return _changed(phrase, [place for place, word in enumerate(words) if word in _ARTICLES and place], rng, None)


def _with_synonym(phrase: str, rng: Random) -> str:
    words = phrase.split(" ")
    return _changed(phrase, [place for place, word in enumerate(words) if word in _SYNONYMS], rng, _SYNONYMS)


def _with_slip(phrase: str, rng: Random) -> str:
    """A letter inside a long word left out, doubled, exchanged with the next or another."""
    words = phrase.split(" ")
    places = [place for place, word in enumerate(words) if len(word) >= _LONG and word.isalpha()]
    if not places:
        return phrase
    word = words[place := rng.choice(places)]
    at = rng.randrange(1, len(word) - 1)
    inside = rng.choice(
        ("", word[at] * 2, word[at + 1] + word[at], rng.choice("abcdefghijklmnopqrstuvwxyz")),
    )
    words[place] = word[:at] + inside + word[at + (2 if len(inside) == 2 and inside[0] != word[at] else 1) :]
    return " ".join(words)


def _with_filler(phrase: str, topic: str, rng: Random) -> str:
    mark = phrase[-1] if phrase[-1] in "?.!:" else ""
    body = phrase.removesuffix(mark) if mark else phrase
    # What stands last may be quoted: nothing may look like a part of it.
    if topic in _OPEN_ENDED or body[-1] in '}"' or rng.random() < 0.5:
        return f"{rng.choice(_BEFORE)} {phrase}"
    return body + rng.choice(_BEHIND) + mark
