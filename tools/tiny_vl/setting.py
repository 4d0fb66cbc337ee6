"""What a sample may hold: in training what the model is ripe for, in evaluation everything."""

from dataclasses import dataclass
from random import Random

from tools.tiny_vl.draw_paper import LARGEST
from tools.tiny_vl.families import KINDS
from tools.tiny_vl.phrasebook import BOOK, Wording, say
from tools.tiny_vl.phrases_talk import HELD_OUT_SYSTEM_PROMPTS, SYSTEM_PROMPTS
from tools.tiny_vl.question import Question

_FIRST_KINDS = ("read", "read-words", "name", "shape-of", "colour-of", "count-all", "echo", "greeting")
_SEVERAL = ("multi-image", "which-image", "multi-turn")
_ALBUMS = ("all-say", "all-show")
_REMARKS = 0.05  # share of questions that come with one


@dataclass(frozen=True, slots=True)
class Setting:
    """How samples are drawn.

    longest: most characters on a sign
    largest: longest side of a lone picture, in pixels
    ease: share of charts and of questions about several pictures that are easy: few bars or pictures, short texts,
        nothing that nearly is the right answer
    """

    training: bool = False
    held_out_phrasing: bool = False
    held_out_fonts: bool = False
    longest: int = 10
    largest: int = LARGEST
    ease: float = 0.0

    @property
    def wording(self) -> Wording:
        return Wording(self.held_out_phrasing, rough=self.training)

    def say(self, question: Question, rng: Random, pic: str | None = None) -> str:
        """The question in words, now and then beside a remark that has nothing to do with the answer."""
        text = say(question.topic, rng, question.fields, self.wording, pic)
        if rng.random() >= _REMARKS:
            return text
        remark = BOOK["remark"].draw(rng, self.held_out_phrasing)
        return f"{text} {remark}" if text.endswith("?") and rng.random() < 0.35 else f"{remark} {text}"

    def phrase(self, topic: str, rng: Random) -> str:
        return say(topic, rng, None, self.wording)

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


_ALL = frozenset(KINDS)
# The beginnings of training: a picture with one or two characters on it teaches most a second (see the model card).
_STAGES = (  # until which progress; longest text; longest side; kinds
    (0.05, 2, 84, frozenset(_FIRST_KINDS)),
    (0.08, 4, 168, frozenset(k.name for k in KINDS.values() if k.family not in _SEVERAL and k.name not in _ALBUMS)),
    (0.13, 5, 224, _ALL),
)


def training_setting(progress: float) -> tuple[Setting, frozenset[str]]:
    """The setting at that share of the training, and the kinds of question by then."""
    ease = max(0.0, 0.75 - 1.25 * progress)  # half of them at a fifth, none from three fifths on
    for until, longest, largest, kinds in _STAGES:
        if progress < until:
            return Setting(training=True, longest=longest, largest=largest, ease=ease), kinds
    return Setting(training=True, ease=ease), _ALL
