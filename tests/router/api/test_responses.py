"""OpenAI's responses: items in, items out, events in OpenAI's order, nothing kept."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.router.api.test_http import error_of
from tests.router.api.tool_template import TOOL_TEMPLATE
from tests.router.events import events_of
from tests.router.requests import text_request
from tests.router.serving import PICTURES, Served, chat_body, picture, say, serving, tiers
from triptych.errors import InvalidRequest, NoWorker
from triptych.models.card import ModelCard
from triptych.router.api.choices import Delta, ToolCallDelta
from triptych.router.api.messages import ImagePart, TextPart
from triptych.router.api.responses.form import ResponseForm
from triptych.router.api.responses.items import read_input
from triptych.router.api.responses.read import read_response
from triptych.router.api.usage import Usage
from triptych.router.edge.failures import error_body

pytestmark = pytest.mark.anyio
PATH = "/v1/responses"
URL = "data:image/png;base64," + base64.b64encode((PICTURES / "red-circle.png").read_bytes()).decode()


@pytest.fixture
async def served(card: ModelCard) -> AsyncIterator[Served]:
    async with serving(card, tiers(card, "e", "p", "d")) as served:
        yield served


@pytest.fixture
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=served.base_url + "/v1", api_key="none", max_retries=0) as client:
        yield client


async def ask(served: Served, input: Any = "hello", **fields: Any) -> httpx.Response:
    body = {"model": "tiny_vl", "input": input, "max_output_tokens": 4, **fields}
    return await served.client.post(PATH, json=body)


async def test_a_text_is_answered_with_one_message(served: Served, client: openai.AsyncOpenAI) -> None:
    chat = (await served.chat("hello", max_tokens=4)).json()
    response = await client.responses.create(
        model="tiny_vl", input="hello", max_output_tokens=4, temperature=0, metadata={"a": "b"}, store=True, user="me"
    )
    assert response.output_text == chat["choices"][0]["message"]["content"]
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.metadata == {"a": "b"}
    assert response.temperature == 0
    assert response.user == "me"
    assert response.usage is not None
    assert response.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert (response.usage.output_tokens, response.usage.total_tokens) == (4, chat["usage"]["total_tokens"])
    raw = (await ask(served)).json()
    assert raw["store"] is False
    assert raw["id"].startswith("resp_")


async def test_an_answer_that_ends_by_itself_is_completed(card: ModelCard) -> None:
    workers = tiers(card, "e", "p", "d")
    workers[-1].finish_at = 3
    async with serving(card, workers) as served:
        response = (await served.client.post(PATH, json={"model": "tiny_vl", "input": "hello"})).json()
        assert response["status"] == "completed"
        assert response["completed_at"] >= response["created_at"]
        assert response["output"][0]["status"] == "completed"


async def test_an_image_counts_as_in_a_chat(served: Served, client: openai.AsyncOpenAI) -> None:
    parts = [{"type": "input_text", "text": "what?"}, {"type": "input_image", "image_url": URL}]
    response = await client.responses.create(
        model="tiny_vl",
        input=[{"role": "user", "content": parts}],
        max_output_tokens=4,  # type: ignore[list-item, misc]
    )
    chat = await served.chat([{"type": "text", "text": "what?"}, picture()], max_tokens=4)
    assert response.usage is not None
    assert response.usage.input_tokens == chat.json()["usage"]["prompt_tokens"]


async def test_events_come_in_openais_order(served: Served) -> None:
    events = events_of((await ask(served, stream=True)).text)
    names = [name for name, _ in events]
    deltas = [name for name in names if name == "response.output_text.delta"]
    assert deltas
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [told["sequence_number"] for _, told in events] == list(range(len(events)))
    whole = (await ask(served)).json()
    last = events[-1][1]["response"]
    assert last["output"][0]["content"] == whole["output"][0]["content"]
    assert last["usage"] == whole["usage"]
    assert events[0][1]["response"]["usage"] is None
    text = "".join(told["delta"] for name, told in events if name == "response.output_text.delta")
    assert text == whole["output"][0]["content"][0]["text"] == events[-4][1]["text"]


async def test_openais_stream_helpers_read_it(card: ModelCard) -> None:
    workers = tiers(card, "e", "p", "d")
    workers[-1].finish_at = 5
    async with (
        serving(card, workers) as served,
        openai.AsyncOpenAI(base_url=served.base_url + "/v1", api_key="none", max_retries=0) as client,
    ):
        whole = await client.responses.create(model="tiny_vl", input="hello")
        kinds = [
            event.type async for event in await client.responses.create(model="tiny_vl", input="hello", stream=True)
        ]
        assert kinds[-1] == "response.completed"
        async with client.responses.stream(model="tiny_vl", input="hello") as stream:
            final = await stream.get_final_response()
        assert final.output_text == whole.output_text


async def test_logprobs_come_with_the_text_where_asked(served: Served) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    (part,) = (await ask(served, **asked)).json()["output"][0]["content"]
    assert len(part["logprobs"]) == 4
    assert all(len(entry["top_logprobs"]) <= 2 for entry in part["logprobs"])
    events = events_of((await ask(served, stream=True, **asked)).text)
    streamed = [entry for name, told in events if name == "response.output_text.delta" for entry in told["logprobs"]]
    assert streamed == part["logprobs"]


def test_logprobs_of_the_token_that_ends_an_answer_come_whole_and_streamed() -> None:
    said, end = {"token": "Hello"}, {"token": ""}
    form = form_of(top_logprobs=1)
    form.frames([Delta(0, text="Hello", text_logprobs=[said])], USAGE)
    last = events_of(form.frames([Delta(0, text_logprobs=[end], finish_reason="stop")], USAGE))
    assert [told["logprobs"] for name, told in last if name == "response.output_text.done"] == [[said, end]]
    whole = form_of(top_logprobs=1).whole([Delta(0, "Hello", text_logprobs=[said, end], finish_reason="stop")], USAGE)
    streamed = events_of(form.end(USAGE))[-1][1]["response"]["output"][0]["content"]
    assert streamed == whole["output"][0]["content"]


def form_of(**fields: Any) -> ResponseForm:
    import json

    chat = read_response(json.dumps({"model": "tiny_vl", "input": "hello", **fields}).encode(), 4)
    return ResponseForm(chat, text_request())


USAGE = Usage(3, 5, 0, 1)
CALLED = [
    Delta(0, text="Let me see."),
    Delta(0, tool_calls=[ToolCallDelta(0, "call_1", "look", "")]),
    Delta(0, tool_calls=[ToolCallDelta(0, arguments='{"a":')]),
    Delta(0, tool_calls=[ToolCallDelta(0, arguments=" 1}"), ToolCallDelta(1, "call_2", "go", "{}")]),
    Delta(0, finish_reason="tool_calls"),
]


def test_calls_are_items_with_their_own_events() -> None:
    form = form_of()
    text = "".join(form.frames([delta], USAGE) for delta in CALLED) + form.end(USAGE)
    events = events_of(text)
    assert [name.removeprefix("response.") for name, _ in events[2:]] == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    _, first, second = events[-1][1]["response"]["output"]
    assert (first["call_id"], first["name"], first["arguments"]) == ("call_1", "look", '{"a": 1}')
    assert (second["call_id"], second["name"], second["arguments"]) == ("call_2", "go", "{}")
    assert len({item["id"] for item in events[-1][1]["response"]["output"]}) == 3


def test_a_whole_answer_has_the_items_of_a_streamed_one() -> None:
    form = form_of()
    for delta in CALLED:
        form.frames([delta], USAGE)
    streamed = events_of(form.end(USAGE))[-1][1]["response"]["output"]
    whole = Delta(0)
    for delta in CALLED:
        whole.add(
            Delta(
                0,
                delta.text,
                [ToolCallDelta(c.index, c.id, c.name, c.arguments) for c in delta.tool_calls],
                finish_reason=delta.finish_reason,
            )
        )
    body = form_of().whole([whole], USAGE)
    assert [item | {"id": ""} for item in body["output"]] == [item | {"id": ""} for item in streamed]
    assert body["usage"]["input_tokens_details"]["cached_tokens"] == 1


def test_an_answer_without_a_word_is_an_empty_message() -> None:
    form = form_of()
    events = events_of(form.frames([Delta(0, finish_reason="stop")], USAGE) + form.end(USAGE))
    (item,) = events[-1][1]["response"]["output"]
    assert item["content"][0]["text"] == ""


def test_a_failure_is_told_to_both_kinds_of_client() -> None:
    form = form_of()
    text = form.frames([Delta(0, text="He")], USAGE) + form.error(error_body(NoWorker("no decode worker is ready")))
    (name, error), (last, failed) = events_of(text)[-2:]
    assert (name, last) == ("error", "response.failed")
    assert error["error"]["code"] == error["code"] == "service_unavailable"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["message"] == "no decode worker is ready"
    assert failed["response"]["output"][0]["content"][0]["text"] == "He"


def test_items_become_the_turns_of_a_conversation() -> None:
    messages = read_input(
        [
            {"role": "developer", "content": "be brief"},
            {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "http://a/b.png"}]},
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "go", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c2", "output": "gone"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "seen"}]},
        ],
        "help",
        4,
    )
    assert [message.role for message in messages] == ["system", "system", "user", "assistant", "tool", "tool"]
    assert messages[0].content == "help"
    (image,) = messages[2].content
    assert isinstance(image, ImagePart)
    assert image.param == "input[1].content[0].image_url"
    assert [call.name for call in messages[3].tool_calls] == ["look", "go"]
    assert (messages[4].tool_call_id, messages[4].name, messages[4].content) == ("c2", "go", "gone")
    assert messages[5].content == (TextPart("seen"),)


@pytest.mark.parametrize("number", ["NaN", "1e999"])
def test_what_is_told_again_is_json(number: str) -> None:
    body = '{"model": "m", "input": "x", "text": {"format": {"type": "text", "x": NUMBER}}}'.replace("NUMBER", number)
    with pytest.raises(InvalidRequest) as caught:
        read_response(body.encode(), 4)
    assert caught.value.param == "text"


PART = "input[0].content[0]"


@pytest.mark.parametrize(
    ("input", "param"),
    [
        (None, "input"),
        ([], "input"),
        (5, "input"),
        (["x"], "input[0]"),
        ([{"type": "web_search_call"}], "input[0].type"),
        ([{"type": "item_reference", "id": "x"}], "input[0].type"),
        ([{"role": "tool", "content": "x"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "system", "content": "x"}], "input"),
        ([{"role": "user", "content": [{"type": "text_of_mine"}]}], f"{PART}.type"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], f"{PART}.text"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}], f"{PART}.type"),
        ([{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}], f"{PART}.file_id"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": {"url": URL}}]}], f"{PART}.image_url"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": URL, "detail": "x"}]}], f"{PART}.detail"),
        ([{"type": "function_call", "call_id": "c", "name": "n"}], "input[0].arguments"),
        ([{"type": "function_call_output", "output": "n"}], "input[0].call_id"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "u"}] * 5}], "input"),
    ],
)
def test_what_is_wrong_in_the_input_is_named_by_its_path(input: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_input(input, None, 4)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 9}, "temperature"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "all"}, "tool_choice"),
        ({"text": 1}, "text"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        ({"metadata": {"k": "x" * 513}}, "metadata.k"),
        ({"metadata": {"k" * 65: "x"}}, f"metadata.{'k' * 64}"),
        ({"user": "x" * 513}, "user"),
        ({"text": {"format": {"type": "text"}, "x": "x" * (1 << 20)}}, "text"),
        ({"tools": [{"type": "function", "name": "n", "x": "x" * (1 << 20)}]}, "tools"),
        ({"max_output_tokens": 1 << 20}, "input"),
        ({"input": "wxyz " * 40_000}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "nonsense"}]}]},
            f"{PART}.image_url",
        ),
    ],
)
async def test_what_cannot_be_is_refused_by_its_own_name(served: Served, fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        response = await ask(served, **({"input": "hello", "stream": stream} | fields))
        assert response.status_code == 400, response.text
        assert error_of(response)["param"] == param


async def test_fields_that_only_others_have_are_ignored(served: Served) -> None:
    response = await ask(
        served, background=False, reasoning={"effort": "low"}, truncation="auto", service_tier="auto", new={"a": 1},
        stream_options=None, tools=[], tool_choice="auto", text={"format": {"type": "text"}}, include=None,
    )  # fmt: skip
    assert response.status_code == 200, response.text


async def test_a_failure_before_the_first_token_is_a_status(card: ModelCard) -> None:
    async with serving(card) as served:
        for stream in (False, True):
            response = await ask(served, stream=stream)
            assert response.status_code == 503
            assert error_of(response)["code"] == "service_unavailable"


async def test_a_failure_mid_stream_reaches_openais_client(card: ModelCard) -> None:
    workers = tiers(card, "e", "p", "d")
    workers[-1].fail_decode_at = {position: InvalidRequest("no further") for position in range(2, 9)}
    async with (
        serving(card, workers) as served,
        openai.AsyncOpenAI(base_url=served.base_url + "/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.responses.create(model="tiny_vl", input="hello", max_output_tokens=8, stream=True)
        with pytest.raises(openai.APIError):
            [event async for event in stream]
        response = await served.client.post("/v1/chat/completions", json=chat_body(max_tokens=1))
        assert response.status_code == 200  # the server goes on


async def test_logprobs_of_a_message_before_a_call_are_the_same_whole_and_streamed(
    card: ModelCard, tmp_path: Path
) -> None:
    text = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"at": "the sky"}}\n</tool_call>'
    asked = {
        "include": ["message.output_text.logprobs"],
        "max_output_tokens": 200,
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
    }
    template = tmp_path / "tools.jinja"
    template.write_text(TOOL_TEMPLATE)
    workers = say(tiers(card, "e", "p", "d"), card, text)
    async with serving(card, workers, chat_template=str(template)) as served:
        whole = (await ask(served, **asked)).json()["output"]
        streamed = events_of((await ask(served, stream=True, **asked)).text)[-1][1]["response"]["output"]
    assert [item["type"] for item in whole] == ["message", "function_call"]
    assert streamed[0]["content"] == whole[0]["content"]
    (part,) = whole[0]["content"]
    assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"] == "I look."


async def test_a_call_that_the_template_cannot_tell_is_named_by_the_field_it_came_in(served: Served) -> None:
    output = {"type": "function_call_output", "call_id": "z", "output": "x"}
    for fields in ({}, {"instructions": "Be brief."}):
        response = await ask(served, [output], **fields)
        assert (response.status_code, error_of(response)["param"]) == (400, "input")
