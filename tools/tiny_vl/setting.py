"""What a sample may hold: in training what the model is ripe for, in evaluation everything."""

from dataclasses import dataclass
from random import Random

from tools.tiny_vl.draw_paper import LARGEST
from tools.tiny_vl.families import KINDS
from tools.tiny_vl.phrasebook import say
from tools.tiny_vl.phrases_text import HELD_OUT_SYSTEM_PROMPTS, SYSTEM_PROMPTS
from tools.tiny_vl.question import Question

_FIRST_KINDS = ("read", "read-words", "name", "shape-of", "colour-of", "count-all", "echo", "greeting")
_SEVERAL = ("multi-image", "which-image", "multi-turn")


@dataclass(frozen=True, slots=True)
class Setting:
    """How samples are drawn.

    longest: most characters on a sign
    largest: longest side of a lone picture, in pixels
    """

    training: bool = False
    held_out_phrasing: bool = False
    held_out_fonts: bool = False
    longest: int = 10
    largest: int = LARGEST

    def say(self, question: Question, rng: Random, pic: str | None = None) -> str:
        return say(question.topic, rng, question.fields, self.held_out_phrasing, pic)

    def phrase(self, topic: str, rng: Random) -> str:
        return say(topic, rng, None, self.held_out_phrasing)

    def side(self, pictures: int, rng: Random) -> int:
        """Longest side of each picture, in pixels, in a prompt with so many."""
        if pictures == 1:
            return self.largest
        usual = 224 if pictures == 2 else 168 if pictures <= 4 else 140
        return min(self.largest, LARGEST if rng.random() < 0.04 else usual * 3 // 2 if rng.random() < 0.15 else usual)

    def system(self, rng: Random) -> str | None:
        if rng.random() >= 0.08:
            return None
        return rng.choice(HELD_OUT_SYSTEM_PROMPTS if self.held_out_phrasing else SYSTEM_PROMPTS)


# The beginnings of training: a picture with one or two characters on it teaches most a second (see the model card).
_STAGES = (  # until which progress; longest text; longest side; kinds
    (0.05, 2, 84, {name for name in KINDS if name in _FIRST_KINDS}),
    (0.08, 4, 168, {name for name, kind in KINDS.items() if kind.family not in _SEVERAL}),
    (0.13, 5, 224, set(KINDS)),
)


def training_setting(progress: float) -> tuple[Setting, frozenset[str]]:
    """The setting at that share of the training, and the kinds of question by then."""
    for until, longest, largest, kinds in _STAGES:
        if progress < until:
            return Setting(training=True, longest=longest, largest=largest), frozenset(kinds)
    return Setting(training=True), frozenset(KINDS)
