"""Phrasings: many of them, those kept from training apart, and roughened ones that still ask the same."""

import re
from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest

from tools.tiny_vl.phrasebook import BOOK, HURRIED, say, usual_phrasings
from tools.tiny_vl.phrases_noise import roughen
from tools.tiny_vl.questions import VISUAL_KINDS, invent
from tools.tiny_vl.scenes import COLOURS, SHAPES
from tools.tiny_vl.tokenizer import build_tokenizer
from tools.tiny_vl.words import vocabulary


@pytest.mark.parametrize("topic", sorted(BOOK))
def test_enough_phrasings_and_none_both_trained_and_held_out(topic: str) -> None:
    trained = set(usual_phrasings(topic))
    held_out = [phrase for pattern in BOOK[topic].held_out for phrase in pattern.phrasings()]
    assert len(trained) >= (25 if topic == "remark" else 50)
    assert held_out
    assert not [phrase for phrase in held_out if any(pattern.has(phrase) for pattern in BOOK[topic].trained)]
    assert all(re.fullmatch(r"(\{\w+\}|[^{}()|@~])+", phrase) for phrase in (*trained, *held_out))


def test_phrasings_kept_from_training_hold_no_word_that_training_does_not() -> None:
    known = words_in(phrase for topic in BOOK for phrase in usual_phrasings(topic))
    for topic, phrasings in BOOK.items():
        unseen = words_in(phrase for pattern in phrasings.held_out for phrase in pattern.phrasings()) - known
        assert not unseen, f"{topic}: {unseen}"


def words_in(phrases: Iterable[str]) -> set[str]:
    return {word.lower() for phrase in phrases for word in re.findall(r"[A-Za-z]+", re.sub(r"\{\w+\}", "", phrase))}


def test_every_trained_phrasing_is_one_of_its_patterns() -> None:
    for topic in sorted(BOOK):
        for phrase in usual_phrasings(topic)[:20]:
            assert any(pattern.has(phrase) for pattern in BOOK[topic].trained), phrase


def test_hurried_phrasings_keep_what_they_quote() -> None:
    rng = Random(12)
    changed = 0
    for topic in sorted(BOOK):
        for phrase in usual_phrasings(topic)[:60]:
            rough = roughen(phrase, topic, rng)
            assert Counter(re.findall(r"\{\w+\}", rough)) == Counter(re.findall(r"\{\w+\}", phrase))
            changed += rough != phrase
            if topic in ("echo", "remember", "my-name") and phrase.rstrip('.?!"').endswith("{a}"):
                assert rough.rstrip('.?!"').endswith("{a}")
    assert changed > 2000
    told = [say("total", rng, None, HURRIED) for _ in range(300)]
    assert all(text and "{" not in text for text in told)


@pytest.mark.parametrize("kind", sorted({*VISUAL_KINDS} - {"read-words", "read-small", "read-look-alike"}))
def test_each_question_can_be_put_to_a_named_picture_in_any_wording(kind: str) -> None:
    rng = Random(kind)
    for _ in range(10):
        topic = BOOK[invent(kind, rng)[1].topic]
        assert "{pic}" in topic.draw_naming_the_picture(rng)
        assert any("{pic}" in pattern.text for pattern in topic.held_out)


def test_the_vocabulary_holds_what_most_questions_need() -> None:
    words = vocabulary()
    assert len(set(words)) == len(words)
    assert {"image", "picture", "shape", *COLOURS, *SHAPES} <= set(words[:120])


def test_the_tokenizer_has_every_word_whole_but_the_rarest() -> None:
    tokenizer = build_tokenizer(words := vocabulary())
    assert tokenizer.get_vocab_size() <= 1536
    assert all(len(tokenizer.encode(f" {word}").ids) == 1 for word in words[: len(words) * 9 // 10])
