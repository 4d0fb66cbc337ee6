"""Cases P29 to P45 of the contract: limits, keys, models, fields, and what is refused in which words."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.journey.messages import text
from tests.router import serving as loopback
from tests.router_contract.errors import error_of
from tests.served import Served, chat_body, shown
from triptych.models.card import ModelCard

CHAT = "/v1/chat/completions"


@pytest.mark.anyio
async def test_P29_a_declared_length_over_the_cap_is_refused_unread(card: ModelCard) -> None:
    async with loopback.serving(card, max_body_bytes=1000) as served:
        host, port = served.base_url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 1001\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(2000), 5)
        assert answer.startswith(b"HTTP/1.1 413")
        assert b'"code":"request_too_large"' in answer
        writer.close()


@pytest.mark.anyio
async def test_P30_chat_wants_a_key_and_health_none(card: ModelCard) -> None:
    async with loopback.serving(card, loopback.tiers(card, "epd"), api_key="secret") as served:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}, {"authorization": ""}):
            response = await served.client.post(CHAT, json=loopback.chat_body(max_tokens=2), headers=headers)
            assert error_of(response, 401)["code"] == "invalid_api_key"
        right = {"authorization": "Bearer secret"}
        response = await served.client.post(CHAT, json=loopback.chat_body(max_tokens=2), headers=right)
        assert response.status_code == 200
        assert (await served.client.get("/health")).status_code == 200


def test_P31_the_model_is_listed_and_found_by_its_id(served: Served) -> None:
    (entry,) = served.http.get("/v1/models").json()["data"]
    assert isinstance(entry["max_model_len"], int)
    assert entry["object"] == "model"
    assert served.http.get(f"/v1/models/{entry['id']}").json() == entry
    assert error_of(served.http.get("/v1/models/other"), 404)["code"] == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
def test_P32_an_unknown_model_is_named(served: Served, stream: bool) -> None:
    error = error_of(served.chat("hello", model="other", stream=stream), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ("hello", "messages"),
        ([], "messages"),
        ({}, "messages"),
        ([123], "messages[0]"),
        ([{}], "messages[0].role"),
        ([{"role": "user", "content": 123}], "messages[0].content"),
        ([{"role": "user", "content": [123]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "video_url"}]}], "messages[0].content[0].type"),
        ([{"role": "emperor", "content": "hello"}], "messages[0].role"),
    ],
    ids=str,
)
def test_P33_messages_that_are_none_are_refused_by_their_place(served: Served, messages: Any, param: str) -> None:
    assert error_of(served.chat(messages=messages))["param"] == param
    without = {name: value for name, value in chat_body().items() if name != "messages"}
    assert error_of(served.http.post(CHAT, json=without))["param"] == "messages"


@pytest.mark.parametrize("body", ['"hello"', "[]", "7", "null", "true", "", "{", '{"a": NaN}', '{"model": "\\ud800"}'])
def test_P34_a_body_that_is_no_object_is_refused(served: Served, body: str) -> None:
    response = served.http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert error_of(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_P35_a_body_of_another_kind_is_refused(served: Served, kind: str) -> None:
    response = served.http.post(CHAT, content=json.dumps(chat_body("hello")), headers={"content-type": kind})
    assert 400 <= response.status_code < 500
    assert error_of(response, response.status_code)["message"]


def test_P35_json_may_say_its_charset(served: Served) -> None:
    kind = {"content-type": "application/json; charset=utf-8"}
    assert served.http.post(CHAT, content=json.dumps(chat_body("hello")), headers=kind).status_code == 200


def test_P36_two_choices_come_whole_and_in_a_stream(served: Served) -> None:
    fields: dict[str, Any] = {"n": 2, "temperature": 0.8, "seed": 3, "max_tokens": 8, "ignore_eos": True}
    choices = served.answer(shown(), "What?", **fields)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    chunks = served.chunks(shown(), "What?", **fields)
    for index, whole in enumerate(choices):
        mine = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in mine) == whole["message"]["content"]
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["length"]


def test_P37_logprobs_are_as_many_as_asked_and_join_to_the_text(served: Served) -> None:
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 5, "max_tokens": 8, "ignore_eos": True}
    (choice,) = served.answer("Grüße", **fields)["choices"]
    entries = choice["logprobs"]["content"]
    assert len(entries) == 8
    for entry in entries:
        assert len(entry["top_logprobs"]) == 5
        assert -9999 <= entry["logprob"] <= 0
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == choice["message"]["content"]
    (bare,) = served.answer("Grüße", **fields | {"top_logprobs": 0})["choices"]
    assert all(entry["top_logprobs"] == [] for entry in bare["logprobs"]["content"])


@pytest.mark.parametrize("stream", [False, True])
def test_P38_more_logprobs_than_there_are_to_have_are_refused(served: Served, stream: bool) -> None:
    assert error_of(served.chat("hello", logprobs=True, top_logprobs=21, stream=stream))["param"] == "top_logprobs"
    assert error_of(served.chat("hello", top_logprobs=2, stream=stream))["param"] == "top_logprobs"


def test_P39_a_seed_has_64_bits_and_repeats_an_answer(served: Served) -> None:
    for seed in (1 << 63, -(1 << 63) - 1, 0.5, True):
        assert error_of(served.chat("hello", seed=seed))["param"] == "seed"
    undecided = {str(token): 100 for token in range(40, 60)}
    fields: dict[str, Any] = {"temperature": 2, "logit_bias": undecided, "max_tokens": 16, "ignore_eos": True}
    texts = [served.text("hello", seed=seed, **fields) for seed in (-(1 << 63), -(1 << 63), 8)]
    assert texts[0] == texts[1] != texts[2]


def test_P40_a_banned_token_does_not_come_and_a_bad_key_is_named(served: Served) -> None:
    def ids(**fields: Any) -> list[int]:
        told: list[int] = served.answer("hello", return_token_ids=True, max_tokens=8, ignore_eos=True, **fields)[
            "choices"
        ][0]["token_ids"]
        return told

    banned = set(ids())
    assert not banned & set(ids(logit_bias={str(token): -100 for token in banned}))
    for key in ("word", "-1", "99999999", "1.5"):
        error = error_of(served.chat("hello", logit_bias={key: 1}))
        assert error["param"].startswith("logit_bias")
        assert key in error["message"] + error["param"]
    assert error_of(served.chat("hello", logit_bias={"5": "much"}))["param"].startswith("logit_bias")


SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}, "count": {"type": "integer", "maximum": 9}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
def test_P41_a_json_schema_holds(served: Served, stream: bool) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "shape", "strict": True, "schema": SCHEMA}}
    fields: dict[str, Any] = {"response_format": wanted, "max_tokens": 64, "temperature": 1.0, "seed": 1}
    if stream:
        chunks = served.chunks(shown(), "Which colour?", **fields)
        words = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
    else:
        words = served.text(shown(), "Which colour?", **fields)
    told = json.loads(words)
    assert told.keys() == {"colour", "count"}
    assert told["colour"] in ("red", "blue")
    assert isinstance(told["count"], int)


@pytest.mark.parametrize("wanted", [{"type": "json_schema"}, {"type": "sound"}, {}, "json_object"], ids=str)
def test_P41_a_format_that_is_none_is_refused(served: Served, wanted: Any) -> None:
    assert error_of(served.chat("hello", response_format=wanted))["param"].startswith("response_format")


def test_P42_what_we_do_not_know_is_ignored(served: Served) -> None:
    part = text("hello") | {"cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": [part], "weight": 3}]
    known = served.answer("hello")
    unknown = served.answer(
        messages=messages,
        user="u",
        store=True,
        metadata={"a": "b"},
        service_tier="auto",
        reasoning_effort="low",
        x=[{}],
    )
    assert unknown["choices"] == known["choices"]
    assert unknown["usage"]["prompt_tokens"] == known["usage"]["prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_P43_a_prompt_that_is_too_long_is_refused_with_a_status(served: Served, stream: bool) -> None:
    error = error_of(served.chat("word " * 20_000, stream=stream))
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is ")


@pytest.mark.anyio
async def test_P45_health_is_bad_while_a_stage_is_dead(card: ModelCard) -> None:
    workers = loopback.tiers(card, "e", "p", "d")
    async with loopback.serving(card, workers) as served:
        for worker in workers:
            assert (await served.client.get("/health")).status_code == 200
            await worker.kill()
            role = next(iter(worker.roles))
            await loopback.until(lambda role=role: not served.router.fleet.is_ready(role))
            health = await served.client.get("/health")
            assert health.status_code == 503
            assert health.json()["roles"][str(role)] is False
            await worker.start()
            await loopback.until(lambda role=role: served.router.fleet.is_ready(role))


def test_every_case_of_the_contract_has_a_test_by_its_number() -> None:
    here = Path(__file__).parent
    sources = [*here.glob("test_*.py"), *(here.parent / "clients").glob("test_*.py")]
    written = "".join(path.read_text() for path in sources)
    missing = [number for number in range(1, 46) if f"def test_P{number}_" not in written]
    assert not missing
