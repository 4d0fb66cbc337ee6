"""Conversations over several turns or pictures, and questions about pictures that never came."""

import re
from collections.abc import Callable, Set
from random import Random

from tools.tiny_vl.conversations import draw_sample
from tools.tiny_vl.scenes import COLOURS, SHAPES, BarChart, Picture, Receipt, Sample, Sign

_WORDS: dict[str, Set[str]] = {
    **dict.fromkeys(("shape-of", "shape-of-colour"), frozenset(SHAPES)),
    **dict.fromkeys(("colour-of", "colour-of-shape"), frozenset(COLOURS)),
    **dict.fromkeys(("count-all", "count-shape", "count-colour"), frozenset("0123456")),
}


def drawn(kind: str, count: int) -> list[Sample]:
    return [draw_sample(kind, Random(f"{kind} {number}")) for number in range(count)]


def words_of(sample: Sample) -> str:
    return " ".join(part for turn in sample.turns for part in turn.parts if isinstance(part, str))


def test_late_questions_come_without_a_picture() -> None:
    for kind in ("earlier-turn", "chat-again", "chat-switch", "chat-memory"):
        for sample in drawn(kind, 12):
            assert all(isinstance(part, str) for part in sample.turns[-1].parts)
            assert sample.pictures


def test_what_was_told_beside_pictures_is_remembered() -> None:
    for sample in drawn("chat-memory", 30):
        told = next(place for place, turn in enumerate(sample.turns) if turn.kind == "memory")
        assert told < len(sample.turns) - 1
        assert sample.turns[-1].answer in "".join(map(str, sample.turns[told].parts))
        assert sample.pictures


def test_the_next_picture_gets_the_question_of_the_one_before() -> None:
    for sample in drawn("chat-next", 60):
        first, *others = sample.turns
        answers = _WORDS.get(first.kind, {turn.answer for turn in others})
        assert {turn.answer for turn in others} <= answers
        assert all(any(isinstance(part, Picture) for part in turn.parts) for turn in sample.turns)
        for turn in sample.turns:
            scene = next(part.scene for part in turn.parts if isinstance(part, Picture))
            if isinstance(scene, Receipt):
                assert turn.answer == f"{scene.total / 100:.2f}"
            elif isinstance(scene, Sign):
                assert turn.answer == scene.text
            elif isinstance(scene, BarChart):
                assert turn.answer == scene.labels[scene.heights.index(most(first.kind)(scene.heights))]


def most(kind: str) -> Callable[[tuple[float, ...]], float]:
    return max if kind == "tallest" else min


def test_texts_differ_first_where_they_are_said_to() -> None:
    for sample in drawn("differ", 60):
        one, other = [picture.scene.text for picture in sample.pictures if isinstance(picture.scene, Sign)]
        pair = next((a, b) for a, b in zip(one, other, strict=True) if a != b)
        assert sample.turns[-1].answer == ", ".join(pair)


def test_a_question_about_a_picture_that_nobody_sent_finds_nothing() -> None:
    bare = [sample for sample in drawn("blank", 150) if not sample.pictures]
    assert 3 < len(bare) < 40
    assert all(re.search("image|picture|photo", words_of(sample)) for sample in bare)
