"""The chat request: what is accepted, what is refused, and under which path."""

import json
from typing import Any

import pytest

from triptych.errors import InvalidRequest
from triptych.router.messages import ImagePart, Message, TextPart, images_of
from triptych.router.schema import Chat

HELLO = [{"role": "user", "content": "hello"}]
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
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
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
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
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
    )
    parse(**dict.fromkeys(names), response_format={"type": "text"}, tool_choice="none")
