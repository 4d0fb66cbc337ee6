"""What may be asked for, and what is refused before anybody works for it."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from bench.grammar_schemas import SCHEMAS
from triptych.errors import InvalidRequest
from triptych.grammar.check import check_grammar
from triptych.grammar.spec import MOST_GRAMMAR_BYTES, Grammar, tool_calls


@pytest.mark.parametrize("rules", SCHEMAS, ids=lambda rules: json.dumps(rules)[:40])
def test_every_schema_that_is_sampled_from_passes(rules: Mapping[str, Any]) -> None:
    check_grammar(Grammar("json_schema", json.dumps(rules)))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_object", ""),
        ("regex", "[a-z]+@[a-z]+"),
        ("choice", '["yes", "no \\n \\" ä"]'),
        ("lark", 'start: "a" | "b" start'),
        ("lark", 'root ::= "a" | "b" root'),
    ],
)
def test_every_kind_of_grammar_passes(kind: str, text: str) -> None:
    check_grammar(Grammar(kind, text))


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("json_schema", "{", "cannot be read"),
        ("json_schema", "[]", "is an object"),
        ("json_schema", '{"type": "sound"}', "Invalid type: sound"),
        ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("json_schema", '{"$ref": "https://example.org/schema"}', "Default retriever does not fetch"),
        ("json_schema", '{"type": "string", "minLength": 5, "maxLength": 2}', "nsatisfiable"),
        ("regex", "(", "unclosed group"),
        ("regex", "", "empty"),
        ("choice", "[]", "at least one"),
        ("choice", '["a", 1]', "list of at least one string"),
        ("choice", "no", "cannot be read"),
        ("lark", 'start: "a', "cannot be followed"),
        ("lark", "start: missing", "unknown name"),
        ("structural", "{}", "cannot be read"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_the_reason(kind: str, text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        check_grammar(Grammar(kind, text))


def test_other_kinds_and_more_text_than_is_taken_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="expected one of choice"):
        Grammar("xml", "")
    with pytest.raises(InvalidRequest, match=f"at most {MOST_GRAMMAR_BYTES}"):
        Grammar("regex", "a" * (MOST_GRAMMAR_BYTES + 1))


_NESTED = 20_000
_ROOM = MOST_GRAMMAR_BYTES - 100


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("lark", "start: " + "(" * _NESTED + '"a"' + ")" * _NESTED),
        ("lark", "root ::= " + "(" * _NESTED + '"a"' + ")" * _NESTED),
        ("lark", 'start: %json {"anyOf":' + "[" * _NESTED + "]" * _NESTED + "}"),
        ("lark", 'start: a a a a a a\na: | a a | "x" a | a "x"'),
        ("regex", "(" * _NESTED + "a" + ")" * _NESTED),
        ("regex", "(.{0,5000}a.{0,5000}){0,500}"),
        ("regex", "((((a{1,100}){1,100}){1,100}){1,100})"),
        ("regex", "|".join(f"a{number}" for number in range(_ROOM // 8))),
        ("json_schema", '{"anyOf":[' * _NESTED + '{"type":"null"}' + "]}" * 1000),
        (
            "json_schema",
            '{"type": "array", "minItems": 1000000000, "items": {"type": "string", "minLength": 99999999}}',
        ),
        (
            "json_schema",
            json.dumps({"allOf": [{"properties": {f"p{n}": {"type": ["null", "string"]}}} for n in range(900)]}),
        ),
        (
            "json_schema",
            json.dumps({"properties": {f"property {number}": {"type": "integer"} for number in range(2500)}}),
        ),
        ("json_schema", json.dumps({"enum": [f"value {number}" for number in range(6000)]})),
        ("json_schema", json.dumps({"$ref": "#"})),
        ("choice", json.dumps([f"choice {number}" for number in range(6000)])),
    ],
    ids=lambda value: value[:24],
)
def test_nothing_that_is_taken_takes_long_to_check(kind: str, text: str) -> None:
    began = time.thread_time()
    with suppress(InvalidRequest):
        check_grammar(Grammar(kind, text))
    assert time.thread_time() - began < 3.0


def test_a_refusal_does_not_quote_a_whole_grammar() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_grammar(Grammar("regex", "(" * 20_000))
    assert len(refused.value.message) < 400


def test_tools_have_names_and_arguments_in_the_order_that_parsers_expect() -> None:
    grammar = tool_calls([("look", {"type": "object"}), ("say", None)], required=False, parallel=True)
    check_grammar(grammar)
    with pytest.raises(InvalidRequest, match="0 tools"):
        check_grammar(tool_calls([], required=True, parallel=True))


@pytest.mark.parametrize(
    "rules", [{}, {"type": ["null", "object"]}, {"anyOf": [{"type": "string"}, {"type": "object"}]}, {"properties": {}}]
)
def test_arguments_are_objects_also_where_a_schema_does_not_say_so(rules: Mapping[str, Any]) -> None:
    grammar = tool_calls([("look", rules)], required=True, parallel=True)
    check_grammar(grammar)
    assert json.loads(grammar.text)["tools"][0]["parameters"] == {**rules, "type": "object"}


@pytest.mark.parametrize("kind", ["string", ["array", "null"], 5, None])
def test_a_tool_whose_arguments_are_no_objects_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidRequest, match="'look' are of another type than object"):
        tool_calls([("look", {"type": kind})], required=True, parallel=True)
