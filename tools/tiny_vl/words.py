"""The words worth a token of their own."""

import re
from collections import defaultdict
from collections.abc import Iterator

from tools.tiny_vl.families import KINDS
from tools.tiny_vl.phrasebook import BOOK, NUMBERS, ORDINALS, usual_phrasings
from tools.tiny_vl.phrases import POLITE_COMMANDS, POLITE_QUESTIONS
from tools.tiny_vl.phrases_talk import SYSTEM_PROMPTS
from tools.tiny_vl.scenes import COLOURS, SHAPES

# Phrasings of these topics fill in for kinds that share them, or for several kinds; others have their kind's name.
_SHARE_BY_TOPIC = {"read": 0.3, "name": 0.05, "cell": 0.1, "lead-in": 0.1, "store": 0.03, "which-says": 0.05}
_USUAL_SHARE = 0.01
_SLOT = re.compile(r"\{(\w+)\}")
_FILLED = {"pic": "the image", "pics": "both images", "sort": "letter"}


def vocabulary() -> list[str]:
    """Words and digits that occur after a space in questions and answers, in their case, the most frequent first."""
    counts: defaultdict[str, float] = defaultdict(float)
    for text, share in _texts():
        for word in re.findall(r" ([A-Za-z]+|[0-9])", text):
            counts[word] += share
    return sorted(counts, key=lambda word: (-counts[word], word))


def _texts() -> Iterator[tuple[str, float]]:
    """What is said, and about how often in a sample."""
    for name in BOOK:
        share = _SHARE_BY_TOPIC.get(name, KINDS[name].weight if name in KINDS else _USUAL_SHARE)
        for phrase in (phrasings := usual_phrasings(name)):
            yield _SLOT.sub(lambda slot: _FILLED.get(slot[1], ""), phrase), share / len(phrasings)
    for words, share in (
        (COLOURS, 0.08),
        (SHAPES, 0.08),
        (ORDINALS[:6], 0.05),
        (("image", "picture", "photo", "images", "pictures", "this", "the"), 0.2),
        (tuple("123456789"), 0.03),
        (("number", "previous", "earlier", "last", "photos"), 0.02),
        (("circles", "squares", "triangles", "stars", "crosses", "diamonds", "hearts", "rings", *NUMBERS), 0.01),
        (("a", "an"), 0.05),
    ):
        yield from ((f" {word}", share) for word in words)
    for frames, share in ((POLITE_COMMANDS, 0.04), (POLITE_QUESTIONS, 0.06), (SYSTEM_PROMPTS, 0.08)):
        yield from ((frame.format(""), share / len(frames)) for frame in frames)
