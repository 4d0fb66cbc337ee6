"""Anthropic's messages, which are lists of blocks, as the messages of a conversation."""

import json
from typing import Any

from triptych.errors import InvalidRequest
from triptych.router.api.messages import (
    MOST_MESSAGES,
    MOST_PARTS,
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

_PASSED_OVER = ("thinking", "redacted_thinking")


def read_blocks(value: Any, system: Any, most_images: int) -> tuple[Message, ...]:
    """Raises InvalidRequest naming the path of whatever cannot be used."""
    reader = _Reader(Room(most_images))
    reader.read_system(system)
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"messages is {kind_of(value)}, expected a list with at least one", param="messages")
    if len(value) > MOST_MESSAGES:
        raise InvalidRequest(f"messages has {len(value)} entries, expected at most {MOST_MESSAGES}", param="messages")
    for index, message in enumerate(value):
        reader.read(message, f"messages[{index}]")
    return tuple(reader.messages)


class _Reader:
    def __init__(self, room: Room) -> None:
        self.messages: list[Message] = []
        self._room = room
        self._name_of_call: dict[str, str] = {}

    def read_system(self, value: Any) -> None:
        if value is None or value == "" or value == []:
            return
        content = self._content(value, "system")
        if not isinstance(content, str) and any(isinstance(part, ImagePart) for part in content):
            raise InvalidRequest("system takes text blocks", param="system")
        self.messages.append(Message("system", content))

    def read(self, value: Any, path: str) -> None:
        message = object_at(value, path)
        role, content = message.get("role"), message.get("content")
        if role == "assistant":
            self._assistant(content, f"{path}.content")
        elif role == "user":
            self._user(content, f"{path}.content")
        elif role == "system":
            self.messages.append(Message("system", self._content(content, f"{path}.content")))
        else:
            raise InvalidRequest(f"{path}.role is {shown(role)}, expected user or assistant", param=f"{path}.role")

    def _assistant(self, value: Any, path: str) -> None:
        parts: list[Part] = []
        calls: list[ToolCall] = []
        for block, at in self._blocks(value, path):
            if block.get("type") == "tool_use":
                calls.append(self._call(block, at))
            else:
                parts += self._part(block, at)
        self.messages.append(Message("assistant", _shortest(parts), tool_calls=tuple(calls)))

    def _user(self, value: Any, path: str) -> None:
        """Results of tools are messages of their own, before what the user says."""
        if isinstance(value, str):
            self.messages.append(Message("user", value))
            return
        parts: list[Part] = []
        has_results = False
        for block, at in self._blocks(value, path):
            if block.get("type") == "tool_result":
                self.messages.append(self._result(block, at))
                has_results = True
            else:
                parts += self._part(block, at)
        if parts or not has_results:
            self.messages.append(Message("user", tuple(parts) or ""))

    def _call(self, block: dict[str, Any], path: str) -> ToolCall:
        call = ToolCall(
            id=text_at(block.get("id"), f"{path}.id"),
            name=text_at(block.get("name"), f"{path}.name"),
            arguments=json.dumps(object_at(block.get("input"), f"{path}.input"), ensure_ascii=False),
        )
        self._name_of_call[call.id] = call.name
        return call

    def _result(self, block: dict[str, Any], path: str) -> Message:
        call_id = text_at(block.get("tool_use_id"), f"{path}.tool_use_id")
        content = block.get("content")
        told = "" if content is None else self._content(content, f"{path}.content")
        return Message("tool", told, tool_call_id=call_id, name=self._name_of_call.get(call_id, ""))

    def _content(self, value: Any, path: str) -> str | tuple[Part, ...]:
        if isinstance(value, str):
            return value
        parts = [part for block, at in self._blocks(value, path) for part in self._part(block, at)]
        return _shortest(parts)

    def _blocks(self, value: Any, path: str) -> list[tuple[dict[str, Any], str]]:
        """Blocks and their paths."""
        if isinstance(value, str):
            return [({"type": "text", "text": value}, path)]
        if not isinstance(value, list) or len(value) > MOST_PARTS:
            raise InvalidRequest(
                f"{path} is {kind_of(value)}, expected a text or a list of up to {MOST_PARTS} blocks", param=path
            )
        self._room.take_parts(len(value), "messages")
        return [(object_at(block, f"{path}[{index}]"), f"{path}[{index}]") for index, block in enumerate(value)]

    def _part(self, block: dict[str, Any], path: str) -> tuple[Part, ...]:
        """None for blocks that only their writer needs."""
        kind = block.get("type")
        if kind == "text":
            return (TextPart(text_at(block.get("text"), f"{path}.text")),)
        if kind == "image":
            return (self._image(object_at(block.get("source"), f"{path}.source"), f"{path}.source"),)
        if kind in _PASSED_OVER:
            return ()
        raise InvalidRequest(
            f"{path}.type is {shown(kind)}; this server takes text, image, tool_use and tool_result blocks",
            param=f"{path}.type",
        )

    def _image(self, source: dict[str, Any], path: str) -> ImagePart:
        self._room.take_image("messages")
        kind = source.get("type")
        if kind == "url":
            return ImagePart(text_at(source.get("url"), f"{path}.url"), f"{path}.url")
        if kind == "base64":
            media_type = text_at(source.get("media_type"), f"{path}.media_type")
            if not media_type.startswith("image/") or "," in media_type or ";" in media_type:
                raise InvalidRequest(
                    f"{path}.media_type is {shown(media_type)}, expected image/png or its like",
                    param=f"{path}.media_type",
                )
            data = text_at(source.get("data"), f"{path}.data")
            return ImagePart(f"data:{media_type};base64,{data}", f"{path}.data")
        raise InvalidRequest(
            f"{path}.type is {shown(kind)}; this server takes base64 and url sources", param=f"{path}.type"
        )


def _shortest(parts: list[Part]) -> str | tuple[Part, ...]:
    """Text alone is a string, which every template takes in every role."""
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    return "\n".join(texts) if len(texts) == len(parts) else tuple(parts)
