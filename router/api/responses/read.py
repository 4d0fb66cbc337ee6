"""From the body of POST /v1/responses to a question."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from triptych.errors import InvalidRequest
from triptych.router.api.messages import kind_of, object_at, shown
from triptych.router.api.responses.items import read_input
from triptych.router.api.responses.schema import LOGPROBS_INCLUDED, MOST_TOLD_BYTES, REFUSED, ResponsesRequest
from triptych.router.api.rules import ToolRules, read_format, read_tools_of, rules_for
from triptych.router.api.schema import Chat, ChatRequest, invalid_request


class ResponsesChat(Chat):
    """asked_logprobs: with the text. echoed: what the response repeats of the request."""

    asked_logprobs: bool = False
    echoed: Mapping[str, Any]


def read_response(body: bytes, most_images: int) -> ResponsesChat:
    """Raises InvalidRequest with the path of the field at fault."""
    try:
        asked = ResponsesRequest.model_validate_json(body)
    except ValidationError as error:
        raise invalid_request(error) from None
    _check(asked)
    wants_logprobs = isinstance(asked.include, list) and LOGPROBS_INCLUDED in asked.include
    wants_logprobs = wants_logprobs or bool(asked.top_logprobs)
    messages = read_input(asked.input, asked.instructions, most_images)
    tools = read_tools_of(asked.tools, "tools", _function)
    rules = rules_for(
        tools,
        _tool_rules(asked, bool(tools)),
        read_format(_format(asked.text), "text.format"),
    )
    request = ChatRequest.model_construct(
        model=asked.model,
        messages=[],
        mm_processor_kwargs=asked.mm_processor_kwargs,
        max_tokens=asked.max_output_tokens,
        stop=[],
        logprobs=wants_logprobs,
        top_logprobs=(asked.top_logprobs or 0) if wants_logprobs else None,
        **asked.sampling(),
    )
    chat = ResponsesChat(request, messages, rules=rules)
    chat.asked_logprobs = wants_logprobs
    chat.echoed = _echoed(asked)
    return chat


def _check(asked: ResponsesRequest) -> None:
    for name, why in REFUSED.items():
        if getattr(asked, name) not in (None, False):
            raise InvalidRequest(f"{name}: {why}", param=name)


def _function(value: Any, path: str) -> Mapping[str, Any]:
    """A tool's own fields, which lie flat here."""
    tool = object_at(value, path)
    if tool.get("type") != "function":
        raise InvalidRequest(
            f"{path}.type is {shown(tool.get('type'))}; this server takes tools of type function",
            param=f"{path}.type",
        )
    return tool


def _tool_rules(asked: ResponsesRequest, has_tools: bool) -> ToolRules:
    choice, parallel = asked.tool_choice, asked.parallel_tool_calls is not False
    if choice is None:
        return ToolRules("auto" if has_tools else "none", parallel=parallel)
    if choice in ("none", "auto", "required"):
        return ToolRules(choice, parallel=parallel)
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("name"), str):
        return ToolRules("named", choice["name"], parallel=parallel, param="tool_choice.name")
    raise InvalidRequest(
        'tool_choice: expected none, auto, required or {"type": "function", "name": ...}', param="tool_choice"
    )


def _format(text: Any) -> Any:
    if text is None:
        return None
    if not isinstance(text, dict):
        raise InvalidRequest(f"text is {kind_of(text)}, expected an object", param="text")
    return text.get("format")


def _echoed(asked: ResponsesRequest) -> dict[str, Any]:
    for name in ("text", "tools", "tool_choice"):
        try:
            size = len(json.dumps(getattr(asked, name), allow_nan=False))
        except ValueError:  # the parser takes more than JSON has, and what is told again must be JSON
            raise InvalidRequest(f"{name} holds a number that is none", param=name) from None
        if size > MOST_TOLD_BYTES:
            raise InvalidRequest(f"{name} has {size} bytes of JSON, expected at most {MOST_TOLD_BYTES}", param=name)
    return {
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": None,
        "model": asked.model,
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "text": {"format": _format(asked.text) or {"type": "text"}, "verbosity": "medium"},
        "tool_choice": asked.tool_choice or "auto",
        "tools": asked.tools or [],
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "user": asked.user,
        "metadata": asked.metadata or {},
    }
