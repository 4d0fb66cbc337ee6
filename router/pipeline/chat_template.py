"""Chat templates: jinja2 in an immutable sandbox, with what `transformers` gives them.

A template comes with a checkpoint, which is a stranger's file: it may write text and nothing else.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic_core import from_json

from triptych.errors import ConfigError, InvalidRequest
from triptych.router.api.messages import ImagePart, Message, ToolCall
from triptych.router.api.tools.definition import Tool
from triptych.router.api.tools.parser import BEGIN

Guard: TypeAlias = Callable[[str], str]

# What templates look for in tools, of the words of JSON schema and OpenAI's API.
SCHEMA_WORDS = frozenset(
    {
        *("type", "function", "name", "description", "parameters", "properties", "required", "items", "enum", "title"),
        *("default", "anyOf", "oneOf", "allOf", "additionalProperties", "strict", "format"),
        *("string", "number", "integer", "boolean", "object", "array", "null"),
    }
)
_TO_ESCAPE = re.compile("[^\x00-\x7f\ufdd0-\ufdef]")


class ChatTemplate:
    """Renders messages; images become parts `{"type": "image"}`."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], words: Collection[str] = SCHEMA_WORDS) -> None:
        """special_tokens: `bos_token` and the like, by the names templates use.

        words: of tools, that need no guard
        Raises ConfigError.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
            variables = meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise ConfigError(f"the model's chat template cannot be compiled: {error}") from error
        self._special_tokens = dict(special_tokens)
        self._words = frozenset(words)
        self.tells_tools = "tools" in variables and BEGIN in source  # in the only way that answers are read in
        self.tells_calls = "tool_calls" in source  # those of earlier turns

    def render(self, messages: Sequence[Message], tools: Sequence[Tool], guard: Guard) -> str:
        """The prompt as text; every text of a message or tool goes through `guard` first.

        Raises InvalidRequest where the template refuses these messages.
        """
        said = [self._plain(message, guard) for message in messages]
        offered = [self._guarded(tool.described, guard) for tool in tools] or None
        try:
            return self._template.render(
                messages=said, add_generation_prompt=True, tools=offered, documents=None, **self._special_tokens
            )
        except Exception as error:  # a template comes with a checkpoint and may raise whatever it likes
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {str(error)[:200]}", param="messages"
            ) from error

    def texts(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[str]:
        """Every text that goes through the guard."""
        found: list[str] = []

        def keep(text: str) -> str:
            found.append(text)
            return text

        for message in messages:
            self._plain(message, keep)
        for tool in tools:
            self._guarded(tool.described, keep)
        return found

    def _plain(self, message: Message, guard: Guard) -> dict[str, Any]:
        plain: dict[str, Any] = {"role": message.role}
        if isinstance(message.content, str):
            plain["content"] = guard(message.content)
        else:
            plain["content"] = [
                {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": guard(part.text)}
                for part in message.content
            ]
        if message.tool_calls:
            plain["tool_calls"] = [self._plain_call(call, guard) for call in message.tool_calls]
        for key, text in (("tool_call_id", message.tool_call_id), ("name", message.name)):
            if text:
                plain[key] = guard(text)
        return plain

    def _plain_call(self, call: ToolCall, guard: Guard) -> dict[str, Any]:
        """Templates print arguments as JSON, so they want them as an object."""
        try:
            arguments = from_json(call.arguments)
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            arguments = call.arguments
        function = {"name": guard(call.name), "arguments": self._guarded(arguments, guard)}
        return {"id": guard(call.id), "type": "function", "function": function}

    def _guarded(self, value: Any, guard: Guard) -> Any:
        """JSON with all of its texts guarded, keys as well, but for the words that schemas are made of.

        Templates look for these words. No special token can come of one: strangers' texts beside it are guarded.
        """
        if isinstance(value, str):
            return value if value in self._words else guard(value)
        if isinstance(value, Mapping):
            return {self._guarded(key, guard): self._guarded(each, guard) for key, each in value.items()}
        if isinstance(value, list):
            return [self._guarded(each, guard) for each in value]
        return value


class _Generation(Extension):
    """`{% generation %}` marks what the assistant says, for training; here it just renders."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without jinja's escaping of HTML, which no model has seen in training. Noncharacters stay what they are, so that
    the guard's can be found again."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _TO_ESCAPE.sub(lambda match: json.dumps(match[0])[1:-1], text) if ensure_ascii else text
