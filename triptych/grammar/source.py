"""Grammars in the library's own language."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from llguidance import LLMatcher, grammar_from

from triptych.errors import InvalidRequest
from triptych.grammar.spec import MOST_TOOLS, Grammar

# Between the tokens of JSON: a space, or a new line and its indent. A model at high temperature would fill its whole
# answer with blanks where they are free.
_BLANKS = r"( |\n[ \t]{0,24})"


def source_of(grammar: Grammar) -> str:
    """Raises InvalidRequest for text that is not of its kind; what the library makes of it is seen when it compiles."""
    try:
        return _SOURCES[grammar.kind](grammar.text)
    except InvalidRequest:
        raise
    except RecursionError as error:
        raise InvalidRequest(f"the {grammar.kind} grammar is nested too deeply") from error
    except (ValueError, TypeError, KeyError, AssertionError, IndexError) as error:
        raise InvalidRequest(f"the {grammar.kind} grammar cannot be read: {shown(error)}") from error


def shown(error: object) -> str:
    """An error of the library in one line: it may quote a whole grammar."""
    line = " ".join(str(error).replace("<non-verbose/>", "").split())
    return line if len(line) <= 300 else f"{line[:300]}…"


def _json_schema(text: str) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(_schema(json.loads(text))))


def _schema(schema: Any) -> Any:
    """A schema as the library takes it, which would look for the meta-schema named by `$schema`: we fetch nothing."""
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise InvalidRequest("a JSON schema is an object")
    kept = {name: value for name, value in schema.items() if name not in ("$schema", "$id", "x-guidance")}
    return {**kept, "x-guidance": {"whitespace_pattern": _BLANKS}}


def _json_object(text: str) -> str:
    return _json_schema('{"type": "object"}')


def _regex(text: str) -> str:
    if not text:
        raise InvalidRequest("the regex is empty")
    return LLMatcher.grammar_from_regex(text)


def _choice(text: str) -> str:
    choices = json.loads(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) and each for each in choices):
        raise InvalidRequest("choices are a list of at least one string, none of them empty")
    return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(each) for each in dict.fromkeys(choices)))


def _lark(text: str) -> str:
    if "::=" in text:
        return grammar_from("gbnf", text)
    return LLMatcher.grammar_from_lark(text)


def _structural(text: str) -> str:
    asked = json.loads(text)
    tools = asked["tools"]
    if not 1 <= len(tools) <= MOST_TOOLS:
        raise InvalidRequest(f"{len(tools)} tools may be called, expected 1 to {MOST_TOOLS}")
    begin, end = json.dumps(asked["begin"]), json.dumps(asked["end"])
    again = f'("\\n" {begin} call)*' if asked["parallel"] else ""
    if asked["required"]:
        start = f"start: {begin} call {again}"
    else:
        start = "start: (begun call)* TEXT" if asked["parallel"] else "start: TEXT | begun call"
    return LLMatcher.grammar_from_lark(
        "\n".join(
            [
                # Else a tag would have to be spelled in pieces even where the tokenizer has a token for it.
                '%llguidance {"no_forcing": true}',
                start,
                f"begun[lazy]: TEXT {begin}",
                f'call: "\\n{{\\"name\\": " tool "}}\\n" {end}',
                "tool: " + " | ".join(f"tool_{number}" for number in range(len(tools))),
                *(_tool(number, tool) for number, tool in enumerate(tools)),
                r"TEXT: /(.|\n)*/",
            ]
        )
    )


def _tool(number: int, tool: Mapping[str, Any]) -> str:
    head = f'{json.dumps(tool["name"])}, "arguments": '
    return f"tool_{number}: {json.dumps(head)} %json {json.dumps(_schema(tool['parameters']))}"


_SOURCES: Mapping[str, Callable[[str], str]] = {
    "json_schema": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "lark": _lark,
    "structural": _structural,
}
