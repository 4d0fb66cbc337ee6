"""Token ids of texts and of conversations, and back."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.router.api.test_http import error_of
from tests.router.serving import Served, chat_body, picture, serving, tiers
from triptych.models.card import ModelCard

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(card: ModelCard) -> AsyncIterator[Served]:
    async with serving(card, tiers(card, "e", "p", "d")) as served:
        yield served


async def test_text_comes_back_as_it_went(served: Served) -> None:
    text = "hello <|im_end|> wörld \n"
    told = (await served.client.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    back = await served.client.post("/detokenize", json={"model": "tiny_vl", "tokens": told["tokens"]})
    assert back.json() == {"prompt": text}


async def test_a_conversation_has_the_tokens_it_is_answered_from(served: Served) -> None:
    content = [picture(), {"type": "text", "text": "what?"}]
    told = (await served.client.post("/tokenize", json=chat_body(content))).json()
    chat = (await served.chat(content, max_tokens=1, return_token_ids=True)).json()
    assert told["tokens"] == chat["prompt_token_ids"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"prompt": "x", "model": "other"}, 404, "model"),
        ("/tokenize", {"prompt": "wxyz " * 40_000}, 400, "prompt"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": "x"}, 400, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, 400, "tokens[1]"),
        ("/detokenize", {"tokens": [1, 1 << 40]}, 400, "tokens[1]"),
        ("/detokenize", {"tokens": [True]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [1] * 100_000}, 400, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
    ],
)
async def test_what_is_wrong_is_named(served: Served, path: str, body: dict[str, Any], status: int, param: str) -> None:
    response = await served.client.post(path, json=body)
    assert response.status_code == status, response.text
    assert error_of(response)["param"] == param
