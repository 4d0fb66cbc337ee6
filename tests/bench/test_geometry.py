"""The folder without weights: the published model's numbers, and a tokenizer in which whatever is drawn is text."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tools.make_geometry import SPECIAL_TOKENS, make_geometry
from triptych.journey import Grid
from triptych.models.adapter import adapter_for
from triptych.models.card import image_processor_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("geometry")
    make_geometry(made)
    return made


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_every_id_but_the_special_ones_is_streamed_as_text(tokenizer: Tokenizer) -> None:
    silent = [number for number in range(152_064) if not tokenizer.decode([number])]
    assert silent == list(range(151_643, 151_643 + len(SPECIAL_TOKENS)))


def test_special_tokens_have_the_published_ids(tokenizer: Tokenizer) -> None:
    ids = {"<|endoftext|>": 151_643, "<|im_end|>": 151_645, "<|vision_start|>": 151_652, "<|image_pad|>": 151_655}
    assert {token: tokenizer.token_to_id(token) for token in ids} == ids


def test_a_frequent_word_is_one_token(tokenizer: Tokenizer) -> None:
    text = " they said it would be about the number of people who could go over there"
    assert len(tokenizer.encode(text).ids) == len(text.split())


def test_an_image_of_1280x720_is_1196_rows(folder: Path) -> None:
    adapter = adapter_for(json.loads((folder / "config.json").read_text()), image_processor_config(folder))
    plan = adapter.plan(1280, 720, {})
    assert (plan.grid, plan.rows) == (Grid(1, 52, 92), 1196)
