"""Tools and formats as the newer APIs give them: told apart from their wording, then as for a chat request."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from triptych.errors import InvalidRequest
from triptych.router.choices import AnswerParser
from triptych.router.messages import kind_of


@dataclass(frozen=True, slots=True)
class ToolRules:
    """Which tools an answer may or must call.

    choice: none, auto, required or named
    name:   of the tool, if one is named
    param:  where it is named
    """

    choice: str
    name: str = ""
    parallel: bool = True
    param: str = "tool_choice"


@dataclass(frozen=True, slots=True)
class OutputRules:
    """What a Chat needs of them."""

    make_parser: Callable[[], AnswerParser] | None = None


def read_tools_of(value: Any, path: str, function: Callable[[Any, str], Mapping[str, Any]]) -> tuple[Any, ...]:
    """function: a tool's own fields by the names of OpenAI's chat, from one entry and its path"""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidRequest(f"{path} is {kind_of(value)}, expected a list", param=path)
    for index, entry in enumerate(value):
        function(entry, f"{path}[{index}]")
    if value:
        raise InvalidRequest("tools are not supported by this server", param=path)
    return ()


def read_format(value: Any, path: str) -> None:
    if value is None or (isinstance(value, dict) and value.get("type") == "text"):
        return
    raise InvalidRequest(f"{path}: this server supports text", param=path)


def rules_for(tools: tuple[Any, ...], rules: ToolRules, format: None) -> OutputRules:
    if rules.choice in ("required", "named"):
        raise InvalidRequest("tools are not supported by this server", param="tool_choice")
    return OutputRules()
