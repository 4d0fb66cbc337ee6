"""Tools and formats by the newer APIs: their own clients read the calls, whole and streamed."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pydantic
import pytest

from tests.router.api.tool_template import TOOL_TEMPLATE
from tests.router.serving import say, serving, tiers
from triptych.models.card import ModelCard

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
FLAT = [{"type": "function", "name": "weather", "description": "of a city", "parameters": SCHEMA}]
BLOCKS = [{"name": "weather", "description": "of a city", "input_schema": SCHEMA}]


@pytest.fixture
def template(tmp_path: Path) -> str:
    """Of a model that knows tools."""
    file = tmp_path / "template.jinja"
    file.write_text(TOOL_TEMPLATE)
    return str(file)


@asynccontextmanager
async def openai_hears(card: ModelCard, template: str, text: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        serving(card, say(tiers(card, "e", "p", "d"), card, text), chat_template=template) as served,
        openai.AsyncOpenAI(base_url=served.base_url + "/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@asynccontextmanager
async def anthropic_hears(card: ModelCard, template: str, text: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with (
        serving(card, say(tiers(card, "e", "p", "d"), card, text), chat_template=template) as served,
        anthropic.AsyncAnthropic(base_url=served.base_url, api_key="none", max_retries=0) as client,
    ):
        yield client


async def test_a_call_is_an_item_of_a_response(card: ModelCard, template: str) -> None:
    async with openai_hears(card, template, "I look. " + CALL) as client:
        asked: Any = {"model": "tiny_vl", "input": "weather?", "tools": FLAT}
        response = await client.responses.create(**asked)
        message, call = response.output
        assert message.type == "message"
        assert call.type == "function_call"
        assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Ulm"})
        async with client.responses.stream(**asked) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert "response.function_call_arguments.delta" in kinds
        assert [item.type for item in final.output] == ["message", "function_call"]
        assert final.status == "completed"
        follow_up: Any = [
            {"role": "user", "content": "weather?"},
            *[item.model_dump(exclude_none=True) for item in response.output],
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
        ]
        again = await client.responses.create(model="tiny_vl", input=follow_up, tools=asked["tools"])
        assert again.usage is not None
        assert response.usage is not None
        assert again.usage.input_tokens > response.usage.input_tokens


async def test_a_call_is_a_block_of_a_message(card: ModelCard, template: str) -> None:
    async with anthropic_hears(card, template, "I look. " + CALL) as client:
        turns: list[Any] = [{"role": "user", "content": "weather?"}]
        asked: Any = {"model": "tiny_vl", "max_tokens": 100, "tools": BLOCKS}
        message = await client.messages.create(**asked, messages=turns)
        text, call = message.content
        assert text.type == "text"
        assert call.type == "tool_use"
        assert (call.name, call.input, message.stop_reason) == ("weather", {"city": "Ulm"}, "tool_use")
        async with client.messages.stream(**asked, messages=turns) as stream:
            final = await stream.get_final_message()
        assert [block.type for block in final.content] == ["text", "tool_use"]
        assert final.content[1].input == {"city": "Ulm"}  # type: ignore[union-attr]
        turns += [
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]},
        ]
        again = await client.messages.create(**asked, messages=turns)
        assert _input(again) > _input(message)
        counted = await client.messages.count_tokens(model="tiny_vl", messages=turns, tools=asked["tools"])
        assert counted.input_tokens == _input(again)


def _input(message: anthropic.types.Message) -> int:
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


class City(pydantic.BaseModel):
    city: str


async def test_a_response_is_parsed_as_the_schema_says(card: ModelCard, template: str) -> None:
    async with openai_hears(card, template, '{"city": "Ulm"}') as client:
        response = await client.responses.parse(model="tiny_vl", input="a city", text_format=City)
        assert response.output_parsed == City(city="Ulm")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
async def test_a_response_may_be_told_to_call(card: ModelCard, template: str, choice: Any) -> None:
    async with serving(card, say(tiers(card, "e", "p", "d"), card, CALL), chat_template=template) as served:
        body = {"model": "tiny_vl", "input": "x", "tools": FLAT, "tool_choice": choice}
        response = await served.client.post("/v1/responses", json=body)
        assert response.status_code == 200, response.text
        assert response.json()["tool_choice"] == choice
        assert [item["type"] for item in response.json()["output"]] == ["function_call"]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}, {"type": "auto"}])
async def test_a_message_may_be_told_to_call(card: ModelCard, template: str, choice: Any) -> None:
    async with serving(card, say(tiers(card, "e", "p", "d"), card, CALL), chat_template=template) as served:
        turns = [{"role": "user", "content": "x"}]
        body = {"model": "tiny_vl", "max_tokens": 99, "messages": turns, "tools": BLOCKS, "tool_choice": choice}
        response = await served.client.post("/v1/messages", json=body)
        assert response.status_code == 200, response.text
        assert [item["type"] for item in response.json()["content"]] == ["tool_use"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "name": "bad name"}]}, "tools[0].name"),
        ({"tools": FLAT + FLAT}, "tools[1]"),
        ({"tools": FLAT, "tool_choice": {"type": "function", "name": "other"}}, "tool_choice.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "sound"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ],
)
async def test_tools_that_cannot_be_are_named_by_their_path(
    card: ModelCard, fields: dict[str, Any], param: str
) -> None:
    async with serving(card) as served:
        response = await served.client.post("/v1/responses", json={"model": "tiny_vl", "input": "x", **fields})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
