"""The items of a response's input, as the messages of a conversation. Every fault is named by its path."""

from typing import Any

from triptych.errors import InvalidRequest
from triptych.router.api.messages import (
    DETAILS,
    MOST_MESSAGES,
    MOST_PARTS,
    ROLES,
    ImagePart,
    Message,
    Part,
    Room,
    TextPart,
    ToolCall,
    kind_of,
    object_at,
    shown,
    text_at,
)

_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def read_input(value: Any, instructions: str | None, most_images: int) -> tuple[Message, ...]:
    """Raises InvalidRequest."""
    reader = _Reader(Room(most_images))
    if instructions:
        reader.messages.append(Message("system", instructions))
    if isinstance(value, str):
        reader.messages.append(Message("user", value))
        return tuple(reader.messages)
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"input is {kind_of(value)}, expected a text or a list of items", param="input")
    if len(value) > MOST_MESSAGES:
        raise InvalidRequest(f"input has {len(value)} items, expected at most {MOST_MESSAGES}", param="input")
    for index, item in enumerate(value):
        reader.read(item, f"input[{index}]")
    if not any(message.role != "system" for message in reader.messages):
        raise InvalidRequest("input has no message of a user", param="input")
    return tuple(reader.messages)


class _Reader:
    def __init__(self, room: Room) -> None:
        self.messages: list[Message] = []
        self._names: dict[str, str] = {}  # of functions, by the ids of their calls
        self._room = room

    def read(self, value: Any, path: str) -> None:
        item = object_at(value, path)
        kind = item.get("type") or "message"
        if kind == "message":
            self._message(item, path)
        elif kind == "function_call":
            self._call(item, path)
        elif kind == "function_call_output":
            self._output(item, path)
        elif kind == "item_reference":
            raise InvalidRequest("this server keeps no items; send them as they are", param=f"{path}.type")
        elif kind != "reasoning":
            raise InvalidRequest(
                f"{path}.type is {shown(kind)}; this server takes message, function_call, function_call_output",
                param=f"{path}.type",
            )

    def _message(self, item: dict[str, Any], path: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in ROLES or role == "tool":
            raise InvalidRequest(
                f"{path}.role is {shown(role)}, expected user, assistant, system or developer", param=f"{path}.role"
            )
        self.messages.append(Message(ROLES[role], self._content(item.get("content"), f"{path}.content")))

    def _call(self, item: dict[str, Any], path: str) -> None:
        """Calls that follow what the assistant says, or each other, are of one turn."""
        call = ToolCall(
            id=text_at(item.get("call_id"), f"{path}.call_id"),
            name=text_at(item.get("name"), f"{path}.name"),
            arguments=text_at(item.get("arguments"), f"{path}.arguments"),
        )
        self._names[call.id] = call.name
        if self.messages and self.messages[-1].role == "assistant":
            last = self.messages.pop()
            self.messages.append(Message("assistant", last.content, tool_calls=(*last.tool_calls, call)))
        else:
            self.messages.append(Message("assistant", "", tool_calls=(call,)))

    def _output(self, item: dict[str, Any], path: str) -> None:
        call_id = text_at(item.get("call_id"), f"{path}.call_id")
        content = self._content(item.get("output"), f"{path}.output")
        self.messages.append(Message("tool", content, tool_call_id=call_id, name=self._names.get(call_id, "")))

    def _content(self, value: Any, path: str) -> str | tuple[Part, ...]:
        if isinstance(value, str):
            return value
        if not isinstance(value, list) or len(value) > MOST_PARTS:
            raise InvalidRequest(
                f"{path} is {kind_of(value)}, expected a text or a list of up to {MOST_PARTS} parts", param=path
            )
        self._room.take_parts(len(value), "input")
        return tuple(self._part(part, f"{path}[{index}]") for index, part in enumerate(value)) or ""

    def _part(self, value: Any, path: str) -> Part:
        part = object_at(value, path)
        kind = part.get("type")
        if isinstance(kind, str) and kind in _TEXTS:
            field = _TEXTS[kind]
            return TextPart(text_at(part.get(field), f"{path}.{field}"))
        if kind != "input_image":
            raise InvalidRequest(
                f"{path}.type is {shown(kind)}; this server takes input_text and input_image parts",
                param=f"{path}.type",
            )
        return self._image(part, path)

    def _image(self, part: dict[str, Any], path: str) -> ImagePart:
        self._room.take_image("input")
        if part.get("file_id") is not None and part.get("image_url") is None:
            raise InvalidRequest("this server keeps no files; send the image as image_url", param=f"{path}.file_id")
        detail = part.get("detail") or "auto"
        if detail not in DETAILS:
            raise InvalidRequest(
                f"{path}.detail is {shown(detail)}, expected one of {', '.join(DETAILS)}", param=f"{path}.detail"
            )
        return ImagePart(text_at(part.get("image_url"), f"{path}.image_url"), f"{path}.image_url", detail=detail)
