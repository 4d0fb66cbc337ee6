"""The chat request: what is accepted, what is refused, and under which path."""

import json
from typing import Any

import pytest

from triptych.errors import InvalidRequest
from triptych.router.api.messages import ImagePart, Message, TextPart, ToolCall, images_of
from triptych.router.api.schema import Chat, ChatRequest

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}
PIXEL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def parse(**fields: Any) -> Chat:
    return Chat.parse(json.dumps({"model": "m", "messages": HELLO, **fields}).encode())


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value


def content(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def test_a_string_stays_a_string_and_parts_stay_parts_in_their_order() -> None:
    text = {"type": "text", "text": "what?"}
    chat = parse(messages=[{"role": "system", "content": "be brief"}, *content(PIXEL, text, PIXEL)])
    first = ImagePart("data:image/png;base64,AAAA", "messages[1].content[0].image_url.url")
    last = ImagePart("data:image/png;base64,AAAA", "messages[1].content[2].image_url.url")
    assert chat.messages == (
        Message("system", "be brief"),
        Message("user", (first, TextPart("what?"), last)),
    )
    assert images_of(chat.messages) == [first, last]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_every_role_may_use_parts(role: str) -> None:
    chat = parse(messages=[{"role": role, "content": [{"type": "text", "text": "x"}]}])
    assert chat.messages[0].content == (TextPart("x"),)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ("hi", "messages"),
        ([], "messages"),
        ([123], "messages[0]"),
        ([{}], "messages[0].role"),
        ([{"role": "narrator", "content": "x"}], "messages[0].role"),
        ([{"role": "function", "content": "x"}], "messages[0].role"),
        ([{"role": "tool", "content": None}], "messages[0].content"),
        ([{"role": "tool", "content": "x", "tool_call_id": 5}], "messages[0].tool_call_id"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}] * 129}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [5]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[0].tool_calls[0].function.name"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (content({"type": "image_url", "image_url": None}), "messages[0].content[0].image_url"),
        (content({**PIXEL, "uuid": ""}), "messages[0].content[0].uuid"),
        (content({**PIXEL, "uuid": "x" * 257}), "messages[0].content[0].uuid"),
        (content({**PIXEL, "uuid": 5}), "messages[0].content[0].uuid"),
        ([{"role": "user", "content": 123}], "messages[0].content"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": ["x"] * 5000}], "messages[0].content"),
        ([{"role": "user", "content": "x"}] * 5000, "messages"),
        ([{"role": "user", "content": [""] * 4096}] * 5, "messages"),
        (content({"type": "text"}), "messages[0].content[0].text"),
        (content({"type": "image_url", "image_url": "http://x/y.png"}), "messages[0].content[0].image_url"),
        (content({"type": "image_url", "image_url": {}}), "messages[0].content[0].image_url.url"),
        (
            content({"type": "image_url", "image_url": {"url": "u", "detail": "ultra"}}),
            "messages[0].content[0].image_url.detail",
        ),
        (content(PIXEL, {"type": "video_url"}), "messages[0].content[1].type"),
        (content({"type": "input_audio"}), "messages[0].content[0].type"),
        (content({}), "messages[0].content[0].type"),
    ],
)
def test_a_bad_message_is_named_by_its_path(messages: Any, param: str) -> None:
    assert refused(messages=messages).param == param


def test_images_are_counted_over_all_messages() -> None:
    messages = [*content(PIXEL, PIXEL), *content("and", PIXEL)]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    assert len(images_of(Chat.parse(body, most_images=3).messages)) == 3
    with pytest.raises(InvalidRequest, match="more than 2 images"):
        Chat.parse(body, most_images=2)


def test_as_many_parts_as_are_allowed_are_read() -> None:
    chat = parse(messages=[{"role": "user", "content": ["x"] * 4096}] * 4)
    assert sum(len(message.content) for message in chat.messages) == 16_384


@pytest.mark.parametrize("detail", ["auto", "low", "high", "original"])
def test_every_detail_of_the_api_is_accepted(detail: str) -> None:
    parse(messages=content({"type": "image_url", "image_url": {"url": "u", "detail": detail}}))


def test_unknown_fields_are_ignored_everywhere() -> None:
    part = {"type": "text", "text": "x", "cache_control": {}}
    message = {"role": "user", "content": [part], "name": "me", "weight": 1}
    parse(messages=[message], store=True, metadata={"a": 1}, user="me", kv_transfer_params={"x": 1})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": "two"}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": 1 << 63}, "seed"),
        ({"seed": -(1 << 63) - 1}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x", ""]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": [0] * 17}, "stop"),
        ({"logit_bias": {str(index): 1 for index in range(1025)}}, "logit_bias"),
        ({"logit_bias": {str(index): [] for index in range(1025)}}, "logit_bias"),
        ({"logit_bias": [0] * 2000}, "logit_bias"),
        ({"logprobs": "yes"}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"1": "x"}}, "logit_bias.1"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tools": []}, "tools"),
        ({"tools": {}}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]}, "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": "y"}}]}, "tools[0].function.strict"),
        ({"tools": [TOOL, TOOL]}, "tools[1]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": 5}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
        ),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": 5}, "response_format"),
        ({"structured_outputs": 5}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a", 5]}}, "structured_outputs.choice[1]"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"json_object": 5}}, "structured_outputs.json_object"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_regex": "a" * 1_000_000}, "guided_regex"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "x" * 257}, "cache_salt"),
        ({"mm_processor_kwargs": []}, "mm_processor_kwargs"),
        ({"response_format": {"type": "sound"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"model": None}, "model"),
    ],
)
def test_a_value_out_of_range_is_named_by_its_field(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert error.param == param
    assert error.http_status == 400


@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b'{"model": "m", "messages": "\\ud800"}', b"\xff\xfe"])
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="JSON"):
        Chat.parse(body)


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"17", b"null", b"true"])
def test_json_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a JSON object"):
        Chat.parse(body)


def test_deep_nesting_is_refused_and_not_followed() -> None:
    with pytest.raises(InvalidRequest):
        Chat.parse(b'{"model": "m", "messages": ' + b"[" * 100_000)


def test_messages_do_not_repeat_megabytes_of_input() -> None:
    error = refused(messages=content({"type": "x" * 1_000_000}))
    assert len(error.message) < 200
    error = refused(temperature="9" * 1_000_000)
    assert len(error.message) < 200
    error = refused(logit_bias={"9" * 1_000_000: "x"})
    assert len(error.message) < 200
    assert len(error.param or "") < 100


def test_the_newer_name_of_max_tokens_wins() -> None:
    assert parse(max_tokens=5, max_completion_tokens=7).request.asked_max_tokens == 7
    assert parse(max_tokens=5).request.asked_max_tokens == 5
    assert parse().request.asked_max_tokens is None


def test_stop_may_be_a_string_a_list_or_null() -> None:
    assert parse(stop="a").request.stops == ["a"]
    assert parse(stop=["a", "b"]).request.stops == ["a", "b"]
    assert parse(stop=None).request.stops == []
    assert parse().request.stops == []


def test_empty_stream_options_ask_for_no_usage() -> None:
    assert not parse(stream=True, stream_options={}).request.includes_usage
    assert parse(stream=True, stream_options={"include_usage": True, "include_obfuscation": 1}).request.includes_usage


def test_null_counts_as_absent() -> None:
    names = (
        "n",
        "temperature",
        "top_p",
        "seed",
        "stop",
        "tools",
        "stream",
        "stream_options",
        "logit_bias",
        "max_tokens",
        "response_format",
        "tool_choice",
        "parallel_tool_calls",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "cache_salt",
        "mm_processor_kwargs",
        "functions",
    )
    parse(**dict.fromkeys(names))
    parse(
        **dict.fromkeys(name for name in names if not name.startswith("response") and name != "tool_choice"),
        response_format={"type": "text"},
        tool_choice="none",
    )


SCHEMA = {"type": "object", "$schema": "http://json-schema.org/draft-07/schema#", "title": "T"}


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "t"}}}, "json_object", ""),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "t", "schema": SCHEMA, "strict": True},
                }
            },
            "json_schema",
            json.dumps(SCHEMA),
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "regex": None, "json_object": False}},
            "json_schema",
            json.dumps(SCHEMA),
        ),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "json_schema", json.dumps(SCHEMA)),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["ä", "b"]}}, "choice", '["ä", "b"]'),
        ({"structured_outputs": {"grammar": "start: A"}}, "lark", "start: A"),
        ({"structured_outputs": {"json_object": True}}, "json_object", ""),
        ({"guided_json": SCHEMA}, "json_schema", json.dumps(SCHEMA)),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["a"]}, "choice", '["a"]'),
        ({"guided_grammar": "start: A"}, "lark", "start: A"),
        ({"tools": [TOOL], "tool_choice": "none", "guided_regex": "a+"}, "regex", "a+"),
    ],
)
def test_a_form_of_answers_becomes_a_grammar(fields: dict[str, Any], kind: str, text: str) -> None:
    grammar = parse(**fields).rules.grammar
    assert grammar is not None
    assert (grammar.kind, grammar.text) == (kind, text)


@pytest.mark.parametrize(
    "fields", [{}, {"response_format": {"type": "text"}}, {"structured_outputs": {}}, {"tool_choice": "auto"}]
)
def test_without_a_form_there_is_no_grammar(fields: dict[str, Any]) -> None:
    rules = parse(**fields).rules
    assert rules.grammar is None
    assert rules.make_parser is None


def test_a_grammar_that_cannot_be_followed_is_refused_by_its_field() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(guided_regex="a(").rules.check()
    assert caught.value.param == "guided_regex"
    bad = {"type": "function", "function": {"name": "f", "parameters": {"type": "sound"}}}
    with pytest.raises(InvalidRequest) as caught:
        parse(tools=[bad], tool_choice="required").rules.check()
    assert caught.value.param == "tools"
    parse(guided_regex="a+").rules.check()
    parse().rules.check()


def test_an_image_may_be_left_out_where_a_uuid_stands_for_it() -> None:
    left_out = ({"image_url": None}, {}, {"image_url": {"url": None}}, {"image_url": {"url": ""}})
    for fields in left_out:
        chat = parse(messages=content({"type": "image_url", "uuid": "cat", **fields}))
        assert images_of(chat.messages) == [ImagePart("", "messages[0].content[0].image_url.url", "cat")]
    both = parse(messages=content({"type": "image_url", "uuid": "cat", "image_url": {"url": "u", "detail": "low"}}))
    assert images_of(both.messages) == [ImagePart("u", "messages[0].content[0].image_url.url", "cat", "low")]


def test_calls_of_earlier_turns_and_their_results_are_kept() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    chat = parse(
        messages=[
            *HELLO,
            {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "2"}]},
            {"role": "assistant", "content": None, "tool_calls": []},
        ]
    )
    assert chat.messages[1:] == (
        Message("assistant", "", (ToolCall("c1", "f", '{"a": 1}'),)),
        Message("tool", (TextPart("2"),), tool_call_id="c1"),
        Message("assistant", ""),
    )


def test_every_field_of_the_request_is_described() -> None:
    assert all(field.description for field in ChatRequest.model_fields.values())
    assert ChatRequest.model_json_schema()["properties"]["tools"]
