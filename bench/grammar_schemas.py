"""Twenty schemas of what JSON schema can say, each with answers of bounded length; tests sample from them, too."""

from collections.abc import Mapping, Sequence
from typing import Any

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
        "maxProperties": 4,
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
