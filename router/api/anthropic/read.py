"""From the bodies of POST /v1/messages and /v1/messages/count_tokens to a question."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from triptych.errors import InvalidRequest
from triptych.router.api.anthropic.blocks import read_blocks
from triptych.router.api.anthropic.schema import REFUSED, CountRequest, MessagesRequest
from triptych.router.api.completions.read import read_stops
from triptych.router.api.messages import kind_of, object_at, shown
from triptych.router.api.rules import ToolRules, read_format, read_tools_of, rules_for
from triptych.router.api.schema import Chat, ChatRequest, invalid_request

_CHOICES = {"auto": "auto", "any": "required", "tool": "named", "none": "none"}

Asked = TypeVar("Asked", bound=CountRequest)


def read_message(body: bytes, most_images: int) -> Chat:
    """Raises InvalidRequest with the path of the field at fault."""
    asked = _asked(MessagesRequest, body)
    stops = read_stops(asked.stop_sequences, "stop_sequences")
    return _chat(asked, most_images, {**asked.sampling(), "max_tokens": asked.max_tokens, "stop": stops})


def read_count(body: bytes, most_images: int) -> Chat:
    """A question that nobody answers. Raises InvalidRequest."""
    return _chat(_asked(CountRequest, body), most_images, {"stop": []})


def _asked(kind: type[Asked], body: bytes) -> Asked:
    try:
        asked = kind.model_validate_json(body)
    except ValidationError as error:
        raise invalid_request(error) from None
    for name, why in REFUSED.items():
        if getattr(asked, name) not in (None, []):
            raise InvalidRequest(f"{name}: {why}", param=name)
    return asked


def _chat(asked: CountRequest, most_images: int, given: Mapping[str, Any]) -> Chat:
    messages = read_blocks(asked.messages, asked.system, most_images)
    tools = read_tools_of(asked.tools or None, "tools", _function)
    rules = rules_for(
        tools,
        _tool_rules(asked.tool_choice, bool(tools)),
        read_format(_format(asked.output_config), "output_config.format"),
    )
    request = ChatRequest.model_construct(
        model=asked.model, messages=[], mm_processor_kwargs=asked.mm_processor_kwargs, **given
    )
    return Chat(request, messages, rules=rules)


def _function(value: Any, path: str) -> Mapping[str, Any]:
    """A tool's own fields, by the names they have at OpenAI."""
    tool = object_at(value, path)
    if tool.get("type") not in (None, "custom"):
        raise InvalidRequest(
            f"{path}.type is {shown(tool.get('type'))}; this server runs no tools, it takes those of type custom",
            param=f"{path}.type",
        )
    schema = object_at(tool.get("input_schema"), f"{path}.input_schema")
    return {**tool, "parameters": schema}


def _tool_rules(value: Any, has_tools: bool) -> ToolRules:
    if value is None:
        return ToolRules("auto" if has_tools else "none")
    choice = object_at(value, "tool_choice")
    kind, name = choice.get("type"), choice.get("name")
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise InvalidRequest(
            f"tool_choice.type is {shown(kind)}, expected one of {', '.join(_CHOICES)}", param="tool_choice.type"
        )
    if kind == "tool" and not isinstance(name, str):
        raise InvalidRequest(f"tool_choice.name is {kind_of(name)}, expected a string", param="tool_choice.name")
    return ToolRules(
        _CHOICES[kind],
        str(name) if kind == "tool" else "",
        parallel=choice.get("disable_parallel_tool_use") is not True,
        param="tool_choice.name",
    )


def _format(config: Any) -> Any:
    return None if config is None else object_at(config, "output_config").get("format")
