"""pydantic-ai, the strictest reader of answers we know, against three tiers."""

from typing import Any, Literal

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, ModelHTTPError, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tests.served import MODEL, Served

COLOUR = "What colour is the shape?"
SETTINGS = ModelSettings(temperature=0, max_tokens=200)


class Shape(BaseModel):
    """What is in a picture."""

    colour: Literal["red", "blue"]
    is_round: bool


def model(served: Served, name: str = MODEL) -> OpenAIChatModel:
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{served.url}/v1", api_key="none"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_P44_pydantic_ai_answers_and_streams(served: Served, picture: bytes) -> None:
    agent = Agent(model(served), model_settings=SETTINGS)
    question = [BinaryContent(picture, media_type="image/png"), COLOUR]
    answer = await agent.run(question)
    assert answer.output == "red"
    assert answer.usage.input_tokens > 16
    async with agent.run_stream(question) as stream:
        assert [text async for text in stream.stream_text()][-1] == "red"


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [Shape, NativeOutput(Shape)], ids=["by a tool", "by a format"])
async def test_P44_pydantic_ai_parses_structured_output(served: Served, picture: bytes, kind: Any) -> None:
    """By default its structured output is a tool that the model must call."""
    agent = Agent(model(served), output_type=kind, model_settings=SETTINGS)
    shape = (await agent.run([BinaryContent(picture, media_type="image/png"), COLOUR])).output
    assert isinstance(shape, Shape)


@pytest.mark.anyio
async def test_P44_pydantic_ai_raises_what_our_errors_mean(served: Served) -> None:
    with pytest.raises(ModelHTTPError) as missing:
        await Agent(model(served, "other")).run("hello")
    assert missing.value.status_code == 404
    with pytest.raises(ModelHTTPError) as bad:
        await Agent(model(served)).run([BinaryContent(b"none", media_type="image/png"), COLOUR])
    assert bad.value.status_code == 400


@pytest.mark.anyio
@pytest.mark.usefixtures("idle_afterwards")
async def test_P44_pydantic_ai_may_leave_a_stream(served: Served) -> None:
    settings = ModelSettings(temperature=0, max_tokens=3000, extra_body={"ignore_eos": True})
    async with Agent(model(served), model_settings=settings).run_stream("hello") as stream:
        async for _ in stream.stream_text():
            break
