"""Chat templates: jinja2 in an immutable sandbox, with what `transformers` gives them.

A template comes with a checkpoint, which is a stranger's file: it may write text and nothing else.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from triptych.errors import ConfigError, InvalidRequest
from triptych.router.messages import ImagePart, Message


class ChatTemplate:
    """Renders messages; images become parts `{"type": "image"}`."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """special_tokens: `bos_token` and the like, by the names templates use. Raises ConfigError."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the model's chat template cannot be compiled: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Message], guard: Callable[[str], str]) -> str:
        """The prompt as text; every text of a message goes through `guard` first.

        Raises InvalidRequest where the template refuses these messages.
        """
        try:
            return self._template.render(
                messages=[_plain(message, guard) for message in messages],
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error


class _Generation(Extension):
    """`{% generation %}` marks what the assistant says, for training; here it just renders."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _plain(message: Message, guard: Callable[[str], str]) -> dict[str, Any]:
    if isinstance(message.content, str):
        return {"role": message.role, "content": guard(message.content)}
    parts = [
        {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": guard(part.text)}
        for part in message.content
    ]
    return {"role": message.role, "content": parts}


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
    """Without jinja's escaping of HTML, which no model has seen in training."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
