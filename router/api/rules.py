"""Tools and formats as the newer APIs give them: told apart from their wording, then as for a chat request."""

from collections.abc import Callable, Mapping
from typing import Any

from triptych.router.api.tools.definition import Tool, read_tools
from triptych.router.api.tools.formats import read_format
from triptych.router.api.tools.rules import OutputRules, ToolRules, rules_for

__all__ = ["OutputRules", "ToolRules", "read_format", "read_tools_of", "rules_for"]


def read_tools_of(value: Any, path: str, function: Callable[[Any, str], Mapping[str, Any]]) -> tuple[Tool, ...]:
    """function: a tool's own fields by the names of OpenAI's chat, from one entry and its path"""
    return read_tools(value, path, lambda entry, at: (function(entry, at), at))
