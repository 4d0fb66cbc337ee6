"""Tool calls over HTTP, whole and streamed, with workers that answer what they are told to."""

import json
from typing import Any

import pytest

from tests.router.serving import chat_body, say, serving, tiers
from triptych.errors import InvalidRequest
from triptych.models.card import ModelCard

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
)
REQUIRED = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200}


async def test_a_call_is_told_in_place_of_content(card: ModelCard) -> None:
    async with serving(card, say(tiers(card, "e", "p", "d"), card, CALLS)) as served:
        body = (await served.client.post(CHAT, json=chat_body(**REQUIRED))).json()
    choice = body["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    told = [(call["type"], call["function"]) for call in choice["message"]["tool_calls"]]
    assert told == [
        ("function", {"name": "weather", "arguments": '{"city": "Ulm"}'}),
        ("function", {"name": "weather", "arguments": "{}"}),
    ]


async def test_a_streamed_call_has_its_name_once_and_its_arguments_in_pieces(card: ModelCard) -> None:
    calls: dict[int, dict[str, Any]] = {}
    finish, pieces = [], 0
    async with serving(card, say(tiers(card, "e", "p", "d"), card, CALLS)) as served:
        answer = await served.client.post(CHAT, json=chat_body(stream=True, **REQUIRED))
    for line in answer.text.splitlines():
        if not line.startswith("data: {"):
            continue
        choice = json.loads(line.removeprefix("data: "))["choices"][0]
        assert not choice["delta"].get("content")
        finish += [choice["finish_reason"]] if choice["finish_reason"] else []
        for call in choice["delta"].get("tool_calls", []):
            if call["index"] not in calls:
                calls[call["index"]] = {"name": call["function"]["name"], "arguments": ""}
            else:
                assert "id" not in call
                assert "name" not in call["function"]
            calls[call["index"]]["arguments"] += call["function"].get("arguments", "")
            pieces += 1
    assert calls == {
        0: {"name": "weather", "arguments": '{"city": "Ulm"}'},
        1: {"name": "weather", "arguments": "{}"},
    }
    assert finish == ["tool_calls"]
    assert pieces > 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"guided_regex": "a("}, "guided_regex"),
        ({"guided_grammar": "nonsense ::"}, "guided_grammar"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_its_field(card: ModelCard, fields: Any, param: str) -> None:
    async with serving(card, tiers(card, "e", "p", "d")) as served:
        for stream in (False, True):
            answer = await served.client.post(CHAT, json=chat_body(stream=stream, **fields))
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [({"guided_regex": "a+"}, "guided_regex"), (REQUIRED, "tools"), ({"max_tokens": 8}, None)],
)
async def test_a_grammar_that_ends_on_the_way_is_named_by_its_field(
    card: ModelCard, fields: Any, param: str | None, stream: bool
) -> None:
    workers = say(tiers(card, "e", "p", "d"), card, CALLS)
    workers[-1].fail_decode_at = {position: InvalidRequest("no further") for position in range(2, 9)}
    async with serving(card, workers) as served:
        answer = await served.client.post(CHAT, json=chat_body(**{"max_tokens": 8, **fields}, stream=stream))
    told = answer.text.strip().splitlines()[-1].removeprefix("data: ")
    assert json.loads(told)["error"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "finish"), [({"max_tokens": 3}, "length"), ({"stop": ['"']}, "stop"), ({"stop": ["_call"]}, "stop")]
)
async def test_a_call_that_is_cut_off_before_its_arguments_shows_none_of_its_markup(
    card: ModelCard, fields: Any, finish: str
) -> None:
    async with serving(card, say(tiers(card, "e", "p", "d"), card, CALLS)) as served:
        (choice,) = (await served.client.post(CHAT, json=chat_body(**REQUIRED | fields))).json()["choices"]
        streamed = await served.client.post(CHAT, json=chat_body(stream=True, **REQUIRED | fields))
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", finish)
    deltas = [json.loads(line[6:])["choices"][0] for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert not any(each["delta"].get("content") or each["delta"].get("tool_calls") for each in deltas)
    assert deltas[-1]["finish_reason"] == finish
