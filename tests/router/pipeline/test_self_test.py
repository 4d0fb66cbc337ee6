"""The question of the self-test, and what counts as its right answer."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triptych.errors import ConfigError
from triptych.journey import Token
from triptych.router.api.schema import Chat
from triptych.router.pipeline.self_test import FILE, NUM_TOKENS, body, difference, is_as_good, known_answer, picture


def answer(*ids: int, top: tuple[tuple[int, float], ...] = ()) -> list[Token]:
    return [Token(id_, -0.1, 0, position, top=top) for position, id_ in enumerate(ids)]


def test_the_picture_is_a_png_with_something_on_either_side() -> None:
    pixels = np.asarray(Image.open(io.BytesIO(picture())))
    assert pixels.shape == (84, 112, 3)
    assert pixels[42, 28].tolist() == [220, 30, 30]
    assert pixels[42, 84].tolist() == [30, 60, 220]
    assert pixels[0, 0].tolist() == [255, 255, 255]


def test_the_question_is_one_that_the_api_takes() -> None:
    chat = Chat.parse(body("m", "salt"))
    assert chat.request.asked_max_tokens == NUM_TOKENS
    assert chat.request.cache_salt == "salt"


def test_an_answer_must_have_the_right_tokens_as_far_as_they_are_known() -> None:
    assert difference((1, 2), answer(1, 2, 3)) == ""
    assert difference((), answer(1)) == ""
    assert difference((1, 2, 3), answer(1, 7, 3)) == "token 1 is 7, expected 2"
    assert difference((1, 2, 3), answer(1, 2)) == "1 of its tokens are missing"


def test_a_token_that_was_as_likely_is_as_good() -> None:
    assert difference((1, 2, 3), answer(1, 7, 8, top=((7, -0.1), (2, -0.3)))) == ""
    assert difference((1, 2, 3), answer(1, 7, 8, top=((7, -0.1), (2, -0.5)))) != ""
    assert is_as_good(5, answer(5)[0])
    assert not is_as_good(6, answer(5)[0])


def test_a_folder_may_tell_the_answer_and_must_make_sense(tmp_path: Path) -> None:
    assert known_answer(tmp_path) == ()
    (tmp_path / FILE).write_text(json.dumps({"token_ids": list(range(100))}))
    assert known_answer(tmp_path) == tuple(range(NUM_TOKENS))
    (tmp_path / FILE).write_text(json.dumps({"token_ids": ["red"]}))
    with pytest.raises(ConfigError, match="token_ids"):
        known_answer(tmp_path)
