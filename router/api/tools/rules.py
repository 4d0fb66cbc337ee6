"""What tools and formats come to together: the grammar of an answer, its parser, and what the prompt tells of tools."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from triptych.errors import InvalidRequest
from triptych.grammar.check import check_grammar
from triptych.grammar.spec import Grammar, tool_calls
from triptych.router.api.choices import AnswerParser
from triptych.router.api.messages import object_at, shown, text_at
from triptych.router.api.tools.definition import Tool
from triptych.router.api.tools.formats import Constraint
from triptych.router.api.tools.parser import ToolCallParser

CHOICES = ("none", "auto", "required")


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
    """What they come to for one request.

    grammar_param: dotted path of what asks for the grammar
    tools:         for the prompt
    by_prompt:     nothing but the prompt tells the model of the tools, so that its template has to know some
    """

    grammar: Grammar | None = None
    grammar_param: str = ""
    tools: tuple[Tool, ...] = ()
    by_prompt: bool = False
    make_parser: Callable[[], AnswerParser] | None = None

    def check(self) -> None:
        """Not for an event loop: grammars take their time. Raises InvalidRequest for one that cannot be followed."""
        if self.grammar is None:
            return
        try:
            check_grammar(self.grammar)
        except InvalidRequest as error:
            error.param = self.grammar_param
            raise


NO_RULES = OutputRules()


def read_tool_choice(value: Any, has_tools: bool, parallel: bool) -> ToolRules:
    """As chat requests have it. Raises InvalidRequest."""
    if value is None:
        return ToolRules("auto" if has_tools else "none", parallel=parallel)
    if isinstance(value, str) and value in CHOICES:
        return ToolRules(value, parallel=parallel)
    if not isinstance(value, dict) or value.get("type") != "function":
        told = shown(value.get("type")) if isinstance(value, dict) else shown(value)
        raise InvalidRequest(
            f'tool_choice is {told}, expected {", ".join(CHOICES)} or {{"type": "function", "function": '
            '{"name": ...}}',
            param="tool_choice",
        )
    function = object_at(value.get("function"), "tool_choice.function")
    param = "tool_choice.function.name"
    return ToolRules("named", text_at(function.get("name"), param), parallel, param)


def rules_for(tools: tuple[Tool, ...], rules: ToolRules, format: Constraint | None) -> OutputRules:
    """Raises InvalidRequest for what cannot be had together."""
    if rules.choice in ("required", "named") and not tools:
        raise InvalidRequest("tool_choice asks for a call, but there are no tools", param="tool_choice")
    if not tools or rules.choice == "none":
        grammar, param = (format.grammar, format.param) if format else (None, "")
        return OutputRules(grammar, param, tools)
    if format is not None:
        raise InvalidRequest(
            f"{format.param} and tools are given together, which leaves no form for the answer; leave one out, or "
            "set tool_choice to none",
            param=format.param,
        )
    grammar = _grammar(tools, rules)
    must_call = rules.choice != "auto"
    return OutputRules(grammar, "tools", tools, not must_call, partial(ToolCallParser, must_call))


def _grammar(tools: tuple[Tool, ...], rules: ToolRules) -> Grammar | None:
    """Where an answer may call tools, but no rule of theirs must be kept, it is left alone."""
    is_free = rules.choice == "auto"
    if is_free and rules.parallel and not any(tool.strict for tool in tools):
        return None
    chosen = tools
    if rules.choice == "named":
        chosen = tuple(tool for tool in tools if tool.name == rules.name)
        if not chosen:
            raise InvalidRequest(f"{rules.param} is {shown(rules.name)}, which is none of the tools", param=rules.param)
    wanted = [(tool.name, tool.parameters if tool.strict or not is_free else None) for tool in chosen]
    try:
        return tool_calls(wanted, required=not is_free, parallel=rules.parallel and rules.choice != "named")
    except InvalidRequest as error:
        error.param = "tools"
        raise
