"""An image that would be lost on its way into the model is an error, never an answer that was given without it."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import EMBEDDED
from tests.multimodal.parts import image, text
from triptych.errors import ConfigError, InvalidRecord, InvalidRequest
from triptych.journey import Layout, Run
from triptych.models.card import load_card
from triptych.multimodal.digest import item_digest
from triptych.multimodal.layout import lay_out
from triptych.router.api.messages import read_messages
from triptych.router.pipeline.prompt import PromptBuilder

ONE_IMAGE = read_messages(
    [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]}]
)
TEXT_ONLY = "{% for message in messages %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model that a test may spoil."""
    return Path(shutil.copytree(EMBEDDED, tmp_path / "model"))


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


def test_a_model_that_names_no_placeholder_does_not_start(folder: Path) -> None:
    edit(folder / "config.json", lambda config: config.pop("image_token_id"))
    with pytest.raises(ConfigError, match="image_token_id is None"):
        load_card(str(folder), "auto")


def test_a_tokenizer_without_the_placeholder_does_not_start(folder: Path) -> None:
    def without(tokenizer: dict[str, Any]) -> None:
        tokenizer["added_tokens"] = [each for each in tokenizer["added_tokens"] if each["content"] != "<|image_pad|>"]

    edit(folder / "tokenizer.json", without)
    with pytest.raises(ConfigError, match=r"at token 5, the tokenizer has <\|image_pad\|> as None"):
        load_card(str(folder), "auto")


def test_a_template_that_leaves_images_out_fails_the_request() -> None:
    card = dataclasses.replace(load_card(str(EMBEDDED), "auto"), chat_template=TEXT_ONLY)
    with pytest.raises(InvalidRequest, match="places 0 of the 1 images"):
        PromptBuilder(card).runs(ONE_IMAGE)


def test_an_item_that_cannot_be_named_is_not_named_by_less() -> None:
    with pytest.raises(InvalidRecord, match="no canonical encoding"):
        item_digest(b"s" * 32, {"resample": object()}, b"f" * 32)  # type: ignore[dict-item]


def test_an_item_without_rows_is_refused() -> None:
    layout = lay_out([text(1), image(2, 3), text(1)])
    with pytest.raises(InvalidRecord, match="0 rows, 24 encoder tokens"):
        dataclasses.replace(layout.items[0], rows=0, runs=())


@pytest.mark.parametrize("slots", [5, 7])
def test_rows_and_places_of_another_number_are_refused_with_both(slots: int) -> None:
    item = lay_out([text(1), image(2, 3), text(2)]).items[0]
    with pytest.raises(InvalidRecord, match=f"lays {slots} rows into the prompt, the encoder makes 6"):
        dataclasses.replace(item, runs=(Run(1, slots),), span=Run(1, slots))


@pytest.mark.parametrize(
    "ids", [np.zeros((2, 4), np.int32), np.zeros(8, np.int64), np.zeros((), np.int32), np.zeros(8, np.uint32)]
)
def test_token_ids_are_int32_of_rank_1(ids: Any) -> None:
    layout: Layout = lay_out([text(1), image(2, 3), text(1)])
    with pytest.raises(InvalidRecord, match="expected int32 of rank 1"):
        dataclasses.replace(layout, token_ids=ids)
