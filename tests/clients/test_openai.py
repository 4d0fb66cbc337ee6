"""OpenAI's Python client against three tiers."""

import json
import time
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.served import MODEL, Served, shown

COLOUR = "What colour is the shape?"


class Shape(BaseModel):
    colour: Literal["red", "blue"]
    is_round: bool


@pytest.fixture
def client(served: Served) -> OpenAI:
    return OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def asked(*parts: Any, **fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_completion_tokens": 32, **fields}


def tool(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "description": "Ahead", "parameters": parameters}}


def test_P44_openai_answers_about_an_image(client: OpenAI) -> None:
    answer = client.chat.completions.create(**asked(shown(), COLOUR))
    assert answer.choices[0].message.content == "red"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer._request_id
    assert [model.id for model in client.models.list()] == [client.models.retrieve(MODEL).id]


def test_P44_openai_streams_and_its_helper_collects(client: OpenAI) -> None:
    options = {"stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(**asked(shown(), COLOUR), stream=True, **options))
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "red"
    assert chunks[-1].usage is not None
    with client.chat.completions.stream(**asked(shown(), COLOUR), **options) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == "red"
    assert final.usage is not None


def test_P44_openai_completes_text_and_asks_for_responses(client: OpenAI) -> None:
    completion = client.completions.create(model=MODEL, prompt="hello", max_tokens=4)
    assert completion.usage is not None
    assert completion.usage.completion_tokens <= 4
    picture = shown()["image_url"]["url"]
    parts = [{"type": "input_image", "image_url": picture}, {"type": "input_text", "text": COLOUR}]
    question: Any = {"model": MODEL, "input": [{"role": "user", "content": parts}], "temperature": 0}
    assert client.responses.create(**question).output_text == "red"
    with client.responses.stream(**question) as stream:
        assert "response.completed" in {event.type for event in stream}
        assert stream.get_final_response().output_text == "red"


def test_P44_openai_parses_structured_output(client: OpenAI) -> None:
    parsed = client.chat.completions.parse(**asked(shown(), COLOUR, response_format=Shape, max_completion_tokens=200))
    assert isinstance(parsed.choices[0].message.parsed, Shape)
    plain = client.chat.completions.create(
        **asked("hello", response_format={"type": "json_object"}, max_completion_tokens=200, temperature=1, seed=1)
    )
    if plain.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(plain.choices[0].message.content or ""), dict)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=str)
def test_P44_openai_is_given_tool_calls(client: OpenAI, weather: dict[str, Any], choice: Any) -> None:
    question = asked("hello", tools=[tool(weather)], tool_choice=choice, max_completion_tokens=200)
    whole = client.chat.completions.create(**question, parallel_tool_calls=False).choices[0]
    assert whole.finish_reason in ("tool_calls", "stop")
    assert whole.message.tool_calls
    call: Any = whole.message.tool_calls[0]
    assert call.id
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in ("Paris", "Oslo")
    with client.chat.completions.stream(**question, parallel_tool_calls=False) as stream:
        for _ in stream:
            pass
        streamed: Any = stream.get_final_completion().choices[0].message.tool_calls
    assert [(entry.function.name, json.loads(entry.function.arguments)) for entry in streamed] == [
        ("weather", arguments)
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_P44_openai_raises_what_our_errors_mean(client: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**asked("hello", model="other", stream=stream))
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**asked(broken, COLOUR, stream=stream))
    assert bad.value.param == "messages[0].content[0].image_url.url"
    assert bad.value.request_id
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="hello")


@pytest.mark.usefixtures("idle_afterwards")
def test_P44_openai_may_leave_a_stream_or_give_up_waiting(client: OpenAI) -> None:
    long = asked("hello", max_completion_tokens=3000)
    with client.chat.completions.create(**long, stream=True, extra_body={"ignore_eos": True}) as stream:
        for _ in range(3):
            next(stream)
    began = time.monotonic()
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(**long, extra_body={"ignore_eos": True}, timeout=0.3)
    assert time.monotonic() - began < 3
