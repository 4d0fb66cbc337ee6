"""Questions whose answers must have a form, and engines that hold them to it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from triptych.grammar.compiler import GrammarCompiler, compiler_of
from triptych.grammar.spec import Grammar
from triptych.journey import Token
from triptych.models.card import ModelCard

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}

SCHEMAS: Sequence[Mapping[str, Any]] = (
    PERSON,
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Colour", "enum": ["red", "green", 3, None]},
    {"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 99}, "minItems": 2, "maxItems": 4},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    {"anyOf": [{"type": "boolean"}, {"type": "string", "minLength": 2, "maxLength": 6}]},
    {"$defs": {"person": PERSON}, "type": "array", "items": {"$ref": "#/$defs/person"}, "maxItems": 2},
    {"const": {"ok": True, "list": [1, "two"]}},
    {"type": ["integer", "null"], "minimum": 1, "maximum": 12},
    {"type": "number", "minimum": 0, "maximum": 1},
    {
        "title": "Nested",
        "type": "object",
        "properties": {
            "size": {
                "type": "object",
                "properties": {"w": {"type": "integer", "maximum": 9, "minimum": 1}},
                "additionalProperties": False,
            },
            "unit": {"enum": ["cm", "mm"], "description": "of width", "default": "cm"},
        },
        "required": ["size", "unit"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {"7": {"type": "integer", "minimum": 0, "maximum": 9}},
        "patternProperties": {"^[a-z]{1,4}$": {"type": "boolean"}},
        "additionalProperties": False,
        "required": ["7"],
    },
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"const": "x"}], "items": False, "minItems": 2},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
    {"oneOf": [{"type": "boolean"}, {"type": "integer", "minimum": 0, "maximum": 3}]},
    {"allOf": [{"type": "string", "maxLength": 9}, {"type": "string", "minLength": 4}]},
    {
        "$defs": {"node": {"type": "object", "properties": {"v": {"const": 1}}, "additionalProperties": False}},
        "type": "object",
        "properties": {
            "left": {"$ref": "#/$defs/node"},
            "right": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
        },
        "required": ["left", "right"],
        "additionalProperties": False,
    },
    {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "a"}},
                "required": ["kind"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {"kind": {"const": "b"}, "n": {"type": "integer", "minimum": 0, "maximum": 50}},
                "required": ["kind", "n"],
                "additionalProperties": False,
            },
        ]
    },
    {"type": "string", "format": "ipv4"},
)


def schema(rules: Mapping[str, Any]) -> Grammar:
    return Grammar("json_schema", json.dumps(rules))


def compiler_for(card: ModelCard) -> GrammarCompiler:
    return compiler_of(card.folder, card.vocab_size, card.eos_token_ids)


def text_of(card: ModelCard, tokens: Sequence[Token]) -> str:
    """Of an answer that has ended by itself."""
    assert tokens[-1].finish_reason == "stop", tokens[-1]
    ids = [token.id for token in tokens[:-1]]
    text: str = Tokenizer.from_file(str(card.folder / "tokenizer.json")).decode(ids, skip_special_tokens=False)
    return text
