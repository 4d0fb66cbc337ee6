"""What a request wants its answers to look like: response_format, and the guided options under vLLM's names."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from triptych.errors import InvalidRequest
from triptych.grammar.spec import Grammar
from triptych.router.api.messages import kind_of, object_at, shown, text_at

FORMATS = ("text", "json_object", "json_schema")
MOST_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class Constraint:
    """param: dotted path of the field that asks for it"""

    grammar: Grammar
    param: str


def read_response_format(value: Any, path: str) -> Constraint | None:
    """As chat requests have it: the schema lies in an object of its own. Raises InvalidRequest."""
    return _format(value, path, "json_schema")


def read_format(value: Any, path: str) -> Constraint | None:
    """As the newer APIs have it: the schema lies beside the type. Raises InvalidRequest."""
    return _format(value, path, "")


def read_structured_outputs(value: Any, path: str) -> list[Constraint]:
    """vLLM's object of options, of which one may be given. Raises InvalidRequest."""
    if value is None:
        return []
    options = object_at(value, path)
    if options.get("structural_tag") is not None:
        raise InvalidRequest(
            f"{path}.structural_tag is not supported; tools with strict true are", param=f"{path}.structural_tag"
        )
    return [
        read(options[name], f"{path}.{name}")
        for name, read in _OPTIONS.items()
        if options.get(name) is not None and not (name == "json_object" and options[name] is False)
    ]


def read_guided(values: Mapping[str, Any]) -> list[Constraint]:
    """vLLM's older options by their names without `guided_`; those that are None are absent. Raises InvalidRequest."""
    return [_OPTIONS[name](value, f"guided_{name}") for name, value in values.items() if value is not None]


def only_one(constraints: list[Constraint]) -> Constraint | None:
    """Raises InvalidRequest naming all of them where there are several."""
    if len(constraints) > 1:
        names = " and ".join(constraint.param for constraint in constraints)
        raise InvalidRequest(f"{names} are given together, expected one of them at most", param=constraints[1].param)
    return constraints[0] if constraints else None


def _format(value: Any, path: str, inner: str) -> Constraint | None:
    if value is None:
        return None
    format = object_at(value, path)
    kind = format.get("type")
    if not isinstance(kind, str) or kind not in FORMATS:
        raise InvalidRequest(
            f"{path}.type is {shown(kind)}, expected one of {', '.join(FORMATS)}", param=f"{path}.type"
        )
    if kind == "text":
        return None
    if kind == "json_object":
        return _constraint("json_object", "", path)
    at = f"{path}.{inner}" if inner else path
    holder = object_at(format.get(inner), at) if inner else format
    schema = holder.get("schema")
    if schema is None and inner:
        return _constraint("json_object", "", at)
    return _schema(object_at(schema, f"{at}.schema"), f"{at}.schema")


def _schema(value: Any, param: str) -> Constraint:
    """Of an object, or of JSON text of one."""
    if isinstance(value, str):
        try:
            value = from_json(value)
        except ValueError:
            raise InvalidRequest(f"{param} is no JSON", param=param) from None
    return _constraint("json_schema", json.dumps(object_at(value, param), ensure_ascii=False), param)


def _choice(value: Any, param: str) -> Constraint:
    if not isinstance(value, list) or not 0 < len(value) <= MOST_CHOICES:
        raise InvalidRequest(
            f"{param} is {kind_of(value)}, expected a list of 1 to {MOST_CHOICES} strings", param=param
        )
    texts = [text_at(each, f"{param}[{index}]") for index, each in enumerate(value)]
    return _constraint("choice", json.dumps(texts, ensure_ascii=False), param)


def _json_object(value: Any, param: str) -> Constraint:
    if value is not True:
        raise InvalidRequest(f"{param} is {kind_of(value)}, expected true or false", param=param)
    return _constraint("json_object", "", param)


def _regex(value: Any, param: str) -> Constraint:
    return _constraint("regex", text_at(value, param), param)


def _grammar(value: Any, param: str) -> Constraint:
    return _constraint("lark", text_at(value, param), param)


def _constraint(kind: str, text: str, param: str) -> Constraint:
    try:
        return Constraint(Grammar(kind, text), param)
    except InvalidRequest as error:
        error.param = param
        raise


_OPTIONS: Mapping[str, Callable[[Any, str], Constraint]] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _json_object,
}
