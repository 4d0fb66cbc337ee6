"""The pictures that tests and `triptych demo` ask about, and the embedded model's answers to them."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import triptych
from tests.reference import Reference
from tools.make_test_pictures import PICTURES

FOLDER = Path(__file__).parent / "data"
MODEL = Path(triptych.__file__).parent / "models" / "tiny_vl"


@dataclass(frozen=True)
class Question:
    images: tuple[str, ...]
    text: str
    answer: str
    demo: bool


def read_questions() -> list[Question]:
    entries: list[dict[str, Any]] = json.loads((FOLDER / "questions.json").read_text())
    return [Question(tuple(entry["images"]), entry["question"], entry["answer"], entry["demo"]) for entry in entries]


QUESTIONS = read_questions()


@functools.lru_cache(maxsize=1)
def embedded_model() -> Reference:
    return Reference(MODEL)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_script_draws(name: str) -> None:
    with Image.open(FOLDER / name) as image:
        committed = np.asarray(image.convert("RGB"), dtype=np.int16)
    drawn = np.asarray(PICTURES[name].draw(), dtype=np.int16)
    assert committed.shape == drawn.shape
    # Edges may move a little with the FreeType release, and the JPEG has lost something.
    assert np.abs(committed - drawn).mean() < 3


def test_every_picture_is_asked_about() -> None:
    asked = {name for question in QUESTIONS for name in question.images}
    assert asked == set(PICTURES)


def test_the_demo_reads_a_sign_names_a_shape_compares_two_pictures_and_reads_a_chart() -> None:
    demo = [question for question in QUESTIONS if question.demo]
    drawn = [type(PICTURES[question.images[0]]).__name__ for question in demo]
    assert drawn == ["Sign", "Shapes", "Sign", "BarChart"]
    assert [len(question.images) for question in demo] == [1, 1, 2, 1]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: f"{'+'.join(question.images)}: {question.text}")
def test_the_embedded_model_answers_right(question: Question) -> None:
    content = [{"type": "image"}] * len(question.images) + [{"type": "text", "text": question.text}]
    images = []
    for name in question.images:
        with Image.open(FOLDER / name) as image:
            images.append(image.convert("RGB"))
    answer = embedded_model().generate([{"role": "user", "content": content}], images, 24, ignore_eos=False)
    assert answer.text == question.answer
    # What an answer must not hang on: rounding, or the last pixel of a glyph.
    assert min(answer.gaps) > 1
