"""Text completions: OpenAI's older shape, prompts as they are, several of them at once."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from tests.router.api.test_http import error_of
from tests.router.requests import text_request
from tests.router.serving import Served, serving, tiers, until
from triptych.errors import InvalidRequest
from triptych.journey import Token
from triptych.metrics import RouterMetrics
from triptych.models.card import ModelCard
from triptych.router.api.choices import Choices
from triptych.router.api.completions.form import CompletionForm
from triptych.router.api.completions.read import reader_of
from triptych.router.api.usage import Usage
from triptych.router.pipeline.detokenize import Detokenizer
from triptych.router.pipeline.prompt import PromptBuilder

pytestmark = pytest.mark.anyio
PATH = "/v1/completions"


@pytest.fixture
async def served(card: ModelCard) -> AsyncIterator[Served]:
    async with serving(card, tiers(card, "e", "p", "d")) as served:
        yield served


async def ask(served: Served, prompt: Any = "hello", **fields: Any) -> httpx.Response:
    return await served.client.post(PATH, json={"model": "tiny_vl", "prompt": prompt, "max_tokens": 4, **fields})


async def answer(served: Served, prompt: Any = "hello", **fields: Any) -> dict[str, Any]:
    response = await ask(served, prompt, **fields)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def chunks(served: Served, prompt: Any = "hello", **fields: Any) -> list[dict[str, Any]]:
    response = await ask(served, prompt, stream=True, **fields)
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    *frames, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


async def test_a_prompt_is_continued_as_it_is(served: Served, card: ModelCard) -> None:
    body = await answer(served, "hello", return_token_ids=True)
    (choice,) = body["choices"]
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert choice["prompt_token_ids"] == list(served.router.prompts.encode_text("hello"))  # no template
    assert body["usage"]["prompt_tokens"] == len(choice["prompt_token_ids"])
    assert body["usage"]["completion_tokens"] == 4


async def test_sixteen_tokens_come_if_nobody_says_how_many(served: Served) -> None:
    response = await served.client.post(PATH, json={"model": "tiny_vl", "prompt": "hello"})
    assert response.json()["usage"]["completion_tokens"] == 16


async def test_token_ids_are_a_prompt_too(served: Served) -> None:
    ids = list(served.router.prompts.encode_text("hello"))
    by_ids, by_text = await answer(served, ids), await answer(served, "hello")
    assert by_ids["choices"] == by_text["choices"]


async def test_the_text_of_a_special_token_stays_text(served: Served) -> None:
    text = f"a {served.router.card.adapter.placeholder_text} <|im_end|>"
    body = await answer(served, text, return_token_ids=True)
    assert not served.router.prompts.special_ids & set(body["choices"][0]["prompt_token_ids"])


async def test_several_prompts_are_numbered_through_with_n_each(served: Served) -> None:
    body = await answer(served, ["hello", "a longer prompt"], n=2)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    one = await answer(served, "a longer prompt", n=2)
    assert [choice["text"] for choice in body["choices"][2:]] == [choice["text"] for choice in one["choices"]]
    assert body["usage"]["completion_tokens"] == 16


async def test_a_stream_says_what_the_whole_answer_says(served: Served) -> None:
    for prompt in ("hello", ["hello", "you there", "and you"]):
        whole = await answer(served, prompt, n=2)
        texts = [""] * len(whole["choices"])
        finishes: dict[int, str] = {}
        pieces = await chunks(served, prompt, n=2)
        for chunk in pieces:
            assert (chunk["object"], "usage" in chunk) == ("text_completion", False)
            (choice,) = chunk["choices"]
            texts[choice["index"]] += choice["text"]
            if choice["finish_reason"]:
                assert choice["index"] not in finishes
                finishes[choice["index"]] = choice["finish_reason"]
        assert texts == [choice["text"] for choice in whole["choices"]]
        assert finishes == {choice["index"]: "length" for choice in whole["choices"]}
        assert len({chunk["id"] for chunk in pieces}) == 1


async def test_usage_comes_last_where_asked(served: Served) -> None:
    options = {"include_usage": True}
    for prompt in ("hello", ["hello", "again"]):
        *_, last = await chunks(served, prompt, stream_options=options)
        assert last["choices"] == []
        assert last["usage"] == (await answer(served, prompt))["usage"]
    every = await chunks(served, stream_options=options | {"continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in every]
    assert counts == sorted(counts)
    assert counts[-1] == 4


async def test_echo_gives_the_prompt_first_once(served: Served) -> None:
    plain = (await answer(served, "hello "))["choices"][0]["text"]
    assert (await answer(served, "hello ", echo=True))["choices"][0]["text"] == "hello " + plain
    ids = served.router.prompts.encode_text("hello ")
    assert (await answer(served, ids, echo=True))["choices"][0]["text"] == "hello " + plain
    pieces = await chunks(served, "hello ", echo=True)
    assert "".join(chunk["choices"][0]["text"] for chunk in pieces) == "hello " + plain


@pytest.mark.parametrize("top", [0, 2, 5])
async def test_logprobs_are_lists_side_by_side(served: Served, top: int) -> None:
    (choice,) = (await answer(served, logprobs=top))["choices"]
    told = choice["logprobs"]
    assert {len(told[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {4}
    assert all(logprob <= 0 for logprob in told["token_logprobs"])
    for token, alternatives in zip(told["tokens"], told["top_logprobs"], strict=True):
        assert token in alternatives
    streamed = [chunk["choices"][0]["logprobs"] for chunk in await chunks(served, logprobs=top)]
    for name in told:
        assert [entry for piece in streamed for entry in piece[name]] == told[name]


def test_the_end_token_is_told_once_among_the_likeliest_and_has_no_text(card: ModelCard) -> None:
    detokenizer = Detokenizer(PromptBuilder(card).tokenizer, card.vocab_size)
    end, other = card.eos_token_ids[0], 7
    request = text_request()
    choices = Choices(request, detokenizer, RouterMetrics(), [], wants_logprobs=True)
    deltas = choices.feed([Token(end, -0.1, 0, 0, "stop", ((end, -0.1), (other, -2.5)))])
    body = {"model": "m", "prompt": "hello", "logprobs": 2}
    chat = reader_of(card, PromptBuilder(card))(json.dumps(body).encode())
    (choice,) = CompletionForm(chat, request).whole(deltas, Usage(1, 1, 0, 0))["choices"]
    (top,) = choice["logprobs"]["top_logprobs"]
    assert choice["logprobs"]["tokens"] == [""]
    assert sorted(top.values()) == [-2.5, -0.1]
    assert top[""] == -0.1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [[1], [True]]}, "prompt[1][0]"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": [1, 1 << 40]}, "prompt[1]"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [{}]}, "prompt[0]"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": ["a"] * 60, "n": 8}, "n"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"guided_regex": "["}, "guided_regex"),
        ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_choice"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": 1, "echo": True}, "echo"),
        ({"stream_options": {}}, "stream_options"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {str(id_): 1 for id_ in range(1025)}}, "logit_bias"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(served: Served, fields: dict[str, Any], param: str) -> None:
    body: dict[str, Any] = {"model": "tiny_vl", "prompt": "hello", "max_tokens": 4, **fields}
    response = await served.client.post(PATH, json=body)
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param


async def test_the_token_of_images_is_no_text(served: Served, card: ModelCard) -> None:
    response = await ask(served, [1, card.adapter.placeholder_id])
    assert response.status_code == 400
    assert error_of(response)["param"] == "prompt[1]"


async def test_a_prompt_that_is_too_long_is_named(served: Served, card: ModelCard) -> None:
    for prompt in ("wxyz " * 40_000, [1] * (card.max_model_len + 5), ["short", "wxyz " * 40_000]):
        for stream in (False, True):
            response = await ask(served, prompt, stream=stream)
            assert response.status_code == 400
            assert error_of(response)["code"] == "context_length_exceeded"
            assert error_of(response)["param"] == "prompt"


async def test_best_of_that_equals_n_and_fields_that_are_null_do_no_harm(served: Served) -> None:
    await answer(served, n=2, best_of=2, suffix=None, stop=None, logprobs=None, user="me", unknown={"a": 1})


async def test_an_unknown_model_is_a_404(served: Served) -> None:
    response = await ask(served, model="other")
    assert response.status_code == 404
    assert error_of(response)["param"] == "model"


@pytest.mark.parametrize("prompt", ["hello", ["hello", "again"]])
async def test_a_failure_before_the_first_token_is_a_status(card: ModelCard, prompt: Any) -> None:
    async with serving(card) as served:
        response = await ask(served, prompt, stream=True)
        assert response.status_code == 503
        assert error_of(response)["code"] == "service_unavailable"
        assert served.router.running == 0


async def test_openais_client_reads_all_of_it(served: Served) -> None:
    client = openai.AsyncOpenAI(base_url=served.base_url + "/v1", api_key="none", max_retries=0)
    async with client:
        whole = await client.completions.create(model="tiny_vl", prompt=["hello", "you"], max_tokens=4, logprobs=2)
        assert [choice.index for choice in whole.choices] == [0, 1]
        stream = await client.completions.create(model="tiny_vl", prompt="hello", max_tokens=4, stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
        assert text == whole.choices[0].text


async def test_a_client_that_leaves_ends_all_its_prompts(card: ModelCard) -> None:
    workers = tiers(card, "e", "p", "d")
    workers[-1].token_pause_seconds = 0.02
    async with serving(card, workers) as served:
        asked = {"model": "tiny_vl", "prompt": ["hello", "you", "there"], "max_tokens": 400, "stream": True}
        async with served.client.stream("POST", PATH, json=asked) as response:
            await anext(response.aiter_text())
            assert served.router.running == 3
        await until(lambda: served.router.running == 0)
        await until(lambda: workers[-1].log.count("cancel") >= 3)


async def test_a_failure_of_one_prompt_ends_the_stream_as_a_failure(card: ModelCard) -> None:
    workers = tiers(card, "e", "p", "d")
    workers[-1].fail_decode_at = {position: InvalidRequest("no further") for position in range(2, 9)}
    async with serving(card, workers) as served:
        response = await ask(served, ["hello", "a longer prompt"], max_tokens=8, stream=True)
        last = response.text.removesuffix("\n\n").split("\n\n")[-1]
        assert last.startswith("event: error\ndata: {")
        assert "[DONE]" not in response.text
        await until(lambda: served.router.running == 0)
