"""The tools a request offers, checked; they come from strangers and go into prompts and grammars."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from triptych.errors import InvalidRequest
from triptych.router.api.messages import kind_of, object_at, shown, text_at

MOST_TOOLS = 128
MOST_TOOL_BYTES = 1 << 20  # of all of them, as JSON
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tool:
    """parameters: JSON schema of the arguments; None: any object. strict: the arguments must keep to it"""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    @property
    def described(self) -> dict[str, Any]:
        """As OpenAI's API has it, which is what templates print."""
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        return {"type": "function", "function": function}


def read_tools(
    value: Any, path: str, function: Callable[[Any, str], tuple[Mapping[str, Any], str]]
) -> tuple[Tool, ...]:
    """function: from an entry and its path to the tool's own fields by OpenAI's names, and the path of these

    Raises InvalidRequest naming the path of what cannot be used; unknown keys are ignored.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidRequest(f"{path} is {kind_of(value)}, expected a list of tools", param=path)
    if len(value) > MOST_TOOLS:
        raise InvalidRequest(f"{path} has {len(value)} entries, expected at most {MOST_TOOLS}", param=path)
    tools = [_tool(*function(entry, f"{path}[{index}]")) for index, entry in enumerate(value)]
    _check_names(tools, path)
    size = len(json.dumps([tool.described for tool in tools], ensure_ascii=False).encode())
    if size > MOST_TOOL_BYTES:
        raise InvalidRequest(f"{path} has {size} bytes of JSON, expected at most {MOST_TOOL_BYTES}", param=path)
    return tuple(tools)


def chat_function(value: Any, path: str) -> tuple[Mapping[str, Any], str]:
    """An entry of a chat request's `tools`."""
    tool = object_at(value, path)
    if tool.get("type", "function") != "function":
        raise InvalidRequest(
            f"{path}.type is {shown(tool.get('type'))}; this server takes tools of type function", param=f"{path}.type"
        )
    return object_at(tool.get("function"), f"{path}.function"), f"{path}.function"


def _tool(function: Mapping[str, Any], path: str) -> Tool:
    name = text_at(function.get("name"), f"{path}.name")
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{path}.name is {shown(name)}, expected up to 64 letters, digits, _ and -", param=f"{path}.name"
        )
    description, parameters, strict = (function.get(key) for key in ("description", "parameters", "strict"))
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequest(f"{path}.strict is {kind_of(strict)}, expected true or false", param=f"{path}.strict")
    return Tool(
        name,
        "" if description is None else text_at(description, f"{path}.description"),
        None if parameters is None else object_at(parameters, f"{path}.parameters"),
        bool(strict),
    )


def _check_names(tools: list[Tool], path: str) -> None:
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise InvalidRequest(f"{path} has two tools of the name {tool.name!r}", param=f"{path}[{index}]")
        seen.add(tool.name)
