"""LangChain's client for OpenAI-like servers against three tiers."""

from typing import Any, Literal

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from openai import BadRequestError, NotFoundError
from pydantic import BaseModel, ConfigDict, SecretStr

from tests.served import MODEL, Served, shown

COLOUR = "What colour is the shape?"


class Shape(BaseModel):
    """What is in a picture."""

    model_config = ConfigDict(extra="forbid")  # a model this small would go on naming things

    colour: Literal["red", "blue"]
    is_round: bool


def model(served: Served, **fields: Any) -> ChatOpenAI:
    chosen: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_completion_tokens": 200, **fields}
    return ChatOpenAI(base_url=f"{served.url}/v1", api_key=SecretStr("none"), max_retries=0, **chosen)


def about_picture(words: str = COLOUR) -> list[Any]:
    return [HumanMessage(content=[shown(), {"type": "text", "text": words}])]


def test_P44_langchain_answers_and_streams(served: Served) -> None:
    answer = model(served).invoke(about_picture())
    assert answer.content == "red"
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata
    assert answer.usage_metadata["input_tokens"] > 16
    pieces = list(model(served, stream_usage=True).stream(about_picture()))
    assert "".join(str(piece.content) for piece in pieces) == "red"
    assert any(piece.usage_metadata for piece in pieces)
    assert model(served).invoke([SystemMessage("Be brief."), HumanMessage("hello")]).content


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_P44_langchain_parses_structured_output(served: Served, method: Any) -> None:
    shape = model(served).with_structured_output(Shape, method=method).invoke(about_picture())
    assert isinstance(shape, Shape)


def test_P44_langchain_is_given_tool_calls(served: Served, weather: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "weather", "description": "Ahead", "parameters": weather}}
    bound = model(served).bind_tools([tool], tool_choice="required", parallel_tool_calls=False)
    answer = bound.invoke("hello")
    (call,) = answer.tool_calls  # type: ignore[attr-defined]
    assert call["name"] == "weather"
    assert call["args"]["city"] in ("Paris", "Oslo")
    whole: Any = None
    for piece in bound.stream("hello"):
        whole = piece if whole is None else whole + piece  # type: ignore[operator]
    assert [(entry["name"], entry["args"]) for entry in whole.tool_calls] == [("weather", call["args"])]


def test_P44_langchain_raises_what_our_errors_mean(served: Served) -> None:
    with pytest.raises(NotFoundError, match="other"):
        model(served, model="other").invoke("hello")
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(BadRequestError, match="image"):
        list(model(served).stream([HumanMessage(content=[broken, {"type": "text", "text": COLOUR}])]))


@pytest.mark.usefixtures("idle_afterwards")
def test_P44_langchain_may_leave_a_stream(served: Served) -> None:
    stream = model(served, max_completion_tokens=3000, extra_body={"ignore_eos": True}).stream("hello")
    for _ in range(3):
        next(stream)
    stream.close()  # type: ignore[attr-defined]
