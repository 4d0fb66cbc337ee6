"""Anthropic's messages: blocks in, blocks out, its events, its errors, its key."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest

from tests.router.events import events_of
from tests.router.requests import text_request
from tests.router.serving import PICTURES, Served, picture, serving, tiers
from triptych.errors import InvalidRequest, NoWorker
from triptych.models.card import ModelCard
from triptych.router.api.anthropic.blocks import read_blocks
from triptych.router.api.anthropic.form import MessageForm
from triptych.router.api.anthropic.read import read_message
from triptych.router.api.choices import Delta, ToolCallDelta
from triptych.router.api.messages import ImagePart
from triptych.router.api.usage import Usage
from triptych.router.edge.failures import error_body

pytestmark = pytest.mark.anyio
PATH = "/v1/messages"
DATA = base64.b64encode((PICTURES / "red-circle.png").read_bytes()).decode()
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
USAGE = Usage(7, 5, 0, 2)


@pytest.fixture
async def served(card: ModelCard) -> AsyncIterator[Served]:
    async with serving(card, tiers(card, "e", "p", "d")) as served:
        yield served


@pytest.fixture
async def client(served: Served) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=served.base_url, api_key="none", max_retries=0) as client:
        yield client


def body(content: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny_vl", "max_tokens": 4, "messages": [{"role": "user", "content": content}], **fields}


def error_of(response: httpx.Response) -> dict[str, Any]:
    told = response.json()
    assert told["type"] == "error"
    assert set(told["error"]) == {"type", "message"}
    assert response.headers["x-request-id"] == response.headers["request-id"]
    error: dict[str, Any] = told["error"]
    return error


async def test_a_message_is_answered_in_blocks(served: Served, client: anthropic.AsyncAnthropic) -> None:
    message = await client.messages.create(**body())
    chat = (await served.chat("hello", max_tokens=4)).json()
    (block,) = message.content
    assert block.type == "text"
    assert block.text == chat["choices"][0]["message"]["content"]
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 4
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == chat["usage"]["prompt_tokens"]


async def test_system_and_images_lie_where_a_chat_has_them(served: Served, client: anthropic.AsyncAnthropic) -> None:
    content = [IMAGE, {"type": "text", "text": "what?"}]
    count = await client.messages.count_tokens(
        model="tiny_vl", system=[{"type": "text", "text": "be brief"}], messages=[{"role": "user", "content": content}]
    )
    asked = {
        "model": "tiny_vl",
        "max_tokens": 4,
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [picture(), {"type": "text", "text": "what?"}]},
        ],
    }
    chat = (await served.client.post("/v1/chat/completions", json=asked)).json()
    assert count.input_tokens == chat["usage"]["prompt_tokens"]
    message = await client.messages.create(**body(content, system="be brief"))
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == count.input_tokens


async def test_counting_generates_nothing(card: ModelCard) -> None:
    async with serving(card) as served:  # without a single worker
        asked = {key: value for key, value in body([IMAGE]).items() if key != "max_tokens"}
        response = await served.client.post(f"{PATH}/count_tokens", json=asked)
        assert response.status_code == 200
        assert response.json()["input_tokens"] > 10


async def test_events_come_in_anthropics_order(served: Served) -> None:
    response = await served.client.post(PATH, json=body(stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.text)
    names = [name for name, _ in events]
    deltas = [told["delta"]["text"] for name, told in events if name == "content_block_delta"]
    assert names == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * len(deltas),
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    whole = (await served.client.post(PATH, json=body())).json()
    assert "".join(deltas) == whole["content"][0]["text"]
    assert events[-2][1]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2][1]["usage"]["output_tokens"] == 4


async def test_anthropics_stream_helper_reads_it(client: anthropic.AsyncAnthropic) -> None:
    whole = await client.messages.create(**body())
    async with client.messages.stream(**body()) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert whole.content[0].type == "text"
    assert text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 4)


async def test_a_stop_sequence_that_came_is_named(client: anthropic.AsyncAnthropic) -> None:
    whole = await client.messages.create(**body(max_tokens=12))
    assert whole.content[0].type == "text"
    stop = whole.content[0].text[3:5]
    message = await client.messages.create(**body(max_tokens=12, stop_sequences=[stop]))
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    async with client.messages.stream(**body(max_tokens=12, stop_sequences=[stop])) as stream:
        final = await stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", stop)


def form() -> MessageForm:
    return MessageForm(read_message(json.dumps(body()).encode(), 4), text_request())


def test_calls_are_blocks_of_their_own() -> None:
    told = form()
    deltas = [
        Delta(0, text="Let me see."),
        Delta(0, tool_calls=[ToolCallDelta(0, "call_1", "look", "")]),
        Delta(0, tool_calls=[ToolCallDelta(0, arguments='{"a":'), ToolCallDelta(0, arguments=" 1}")]),
        Delta(0, tool_calls=[ToolCallDelta(1, "call_2", "go", "{}")]),
        Delta(0, finish_reason="tool_calls"),
    ]
    events = events_of("".join(told.frames([delta], USAGE) for delta in deltas) + told.end(USAGE))
    starts = [told["content_block"] for name, told in events if name == "content_block_start"]
    assert [(block["type"], block.get("name")) for block in starts] == [
        ("text", None),
        ("tool_use", "look"),
        ("tool_use", "go"),
    ]
    pieces = [told["delta"].get("partial_json", "") for _, told in events if told["type"] == "content_block_delta"]
    assert "".join(pieces) == '{"a": 1}{}'
    assert sum(name == "content_block_stop" for name, _ in events) == 3
    assert events[-2][1]["delta"]["stop_reason"] == "tool_use"
    whole = Delta(0, "Let me see.", [ToolCallDelta(0, "call_1", "look", '{"a": 1}')], finish_reason="tool_calls")
    content = form().whole([whole], USAGE)["content"]
    assert content[1] == {"type": "tool_use", "id": "call_1", "name": "look", "input": {"a": 1}}


@pytest.mark.parametrize(
    ("arguments", "input"),
    [
        ('{"a": NaN, "b": [-Infinity, 1e999, 2.5, "x"]}', {"a": None, "b": [None, None, 2.5, "x"]}),
        ('{"a": ' + "[" * 100_000, {}),
        ('{"a": 1', {}),
        ("[1]", {}),
        ("", {}),
    ],
)
def test_whatever_a_model_calls_with_the_input_is_json(arguments: str, input: Any) -> None:
    whole = Delta(0, tool_calls=[ToolCallDelta(0, "call_1", "look", arguments)], finish_reason="tool_calls")
    told = form().whole([whole], USAGE)
    assert told["content"][0]["input"] == input
    json.dumps(told, allow_nan=False)


def test_what_came_from_the_cache_is_counted_apart() -> None:
    usage = form().whole([Delta(0, "hi", finish_reason="stop")], USAGE)["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (5, 2)


def test_a_failure_mid_stream_is_an_event_of_anthropics() -> None:
    told = form()
    text = told.frames([Delta(0, text="He")], USAGE) + told.error(error_body(NoWorker("no decode worker is ready")))
    name, error = events_of(text)[-1]
    assert name == "error"
    assert error["error"] == {"type": "api_error", "message": "no decode worker is ready"}


def test_blocks_become_the_turns_of_a_conversation() -> None:
    messages = read_blocks(
        [
            {"role": "user", "content": "look"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "ä"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [IMAGE, {"type": "text", "text": "this"}]},
                    {"type": "text", "text": "and?"},
                ],
            },
        ],
        "be brief",
        4,
    )
    assert [message.role for message in messages] == ["system", "user", "assistant", "tool", "user"]
    (call,) = messages[2].tool_calls
    assert (call.id, call.name, json.loads(call.arguments)) == ("t1", "look", {"at": "ä"})
    assert messages[2].content == "I look."
    image = messages[3].content[0]
    assert isinstance(image, ImagePart)
    assert image.param == "messages[2].content[0].content[0].source.data"
    assert (messages[3].tool_call_id, messages[3].name) == ("t1", "look")


BLOCK = "messages[0].content[0]"


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (5, "messages[0].content"),
        (["x"], BLOCK),
        ([{"type": "document"}], f"{BLOCK}.type"),
        ([{"type": "text"}], f"{BLOCK}.text"),
        ([{"type": "image"}], f"{BLOCK}.source"),
        ([{"type": "image", "source": {"type": "file", "file_id": "x"}}], f"{BLOCK}.source.type"),
        ([{"type": "image", "source": {"type": "base64", "data": DATA}}], f"{BLOCK}.source.media_type"),
        ([{"type": "image", "source": {"type": "base64", "media_type": "text/html", "data": ""}}],
         f"{BLOCK}.source.media_type"),
        ([{"type": "tool_result", "content": "x"}], f"{BLOCK}.tool_use_id"),
        ([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "x"}]}], f"{BLOCK}.content[0].type"),
        ([IMAGE] * 5, "messages"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_block_is_named_by_its_path(content: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_blocks([{"role": "user", "content": content}], None, 4)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "status", "kind", "word"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "bot", "content": "x"}]}, 400, "invalid_request_error", "messages[0].role"),
        ({"system": [IMAGE]}, 400, "invalid_request_error", "system"),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences"),
        ({"tool_choice": {"type": "all"}}, 400, "invalid_request_error", "tool_choice.type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error", "tools[0].type"),
        ({"tools": [{"name": "look"}]}, 400, "invalid_request_error", "tools[0].input_schema"),
        ({"container": "c"}, 400, "invalid_request_error", "container"),
        ({"model": "other"}, 404, "not_found_error", "other"),
        ({"messages": [{"role": "user", "content": "wxyz " * 40_000}]}, 400, "invalid_request_error", "context"),
    ],
)
async def test_errors_have_anthropics_shape(
    served: Served, fields: dict[str, Any], status: int, kind: str, word: str
) -> None:
    for stream in (False, True):
        response = await served.client.post(PATH, json=body(stream=stream) | fields)
        assert response.status_code == status, response.text
        error = error_of(response)
        assert error["type"] == kind
        assert word in error["message"]


async def test_a_bad_image_is_named_by_its_path(served: Served) -> None:
    bad = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "PGh0bWw+"}}
    for path in (PATH, f"{PATH}/count_tokens"):
        response = await served.client.post(path, json=body([IMAGE, bad]))
        assert response.status_code == 400
        assert "messages[0].content[1].source.data" in error_of(response)["message"]


async def test_routes_methods_and_bodies_that_are_wrong_have_the_shape_too(served: Served) -> None:
    assert error_of(await served.client.get(PATH))["type"] == "invalid_request_error"
    assert error_of(await served.client.post(f"{PATH}/batches"))["type"] == "not_found_error"
    assert error_of(await served.client.post(PATH, content=b"{"))["type"] == "invalid_request_error"


async def test_a_key_in_anthropics_header_opens_the_door(card: ModelCard) -> None:
    async with serving(card, tiers(card, "e", "p", "d"), api_key="secret") as served:
        for headers, status in (
            ({}, 401),
            ({"x-api-key": "wrong"}, 401),
            ({"x-api-key": "secret"}, 200),
            ({"authorization": "Bearer secret"}, 200),
        ):
            response = await served.client.post(PATH, json=body(), headers=headers)
            assert response.status_code == status
            if status == 401:
                assert error_of(response)["type"] == "authentication_error"
        async with anthropic.AsyncAnthropic(base_url=served.base_url, api_key="wrong", max_retries=0) as client:
            with pytest.raises(anthropic.AuthenticationError):
                await client.messages.create(**body())


async def test_nobody_there_is_an_overload_that_may_be_tried_again(card: ModelCard) -> None:
    async with serving(card) as served:
        response = await served.client.post(PATH, json=body())
        assert response.status_code == 503
        assert response.headers["retry-after"]
        assert error_of(response)["type"] == "overloaded_error"


async def test_fields_that_only_others_have_are_ignored(served: Served) -> None:
    asked = body(
        metadata={"user_id": "me"}, thinking={"type": "disabled"}, service_tier="auto", new=[1], tools=[], top_k=5
    )
    assert (await served.client.post(PATH, json=asked)).status_code == 200
