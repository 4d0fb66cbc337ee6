"""The messages of a chat request, checked by hand: a wrong part is named by its path, which unions cannot do."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from triptych.errors import InvalidRequest

# Templates know "system"; OpenAI calls the same role "developer" for newer models.
ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
MOST_MESSAGES = 4096
MOST_PARTS = 4096  # of one message
MOST_PARTS_IN_ALL = 16_384
MOST_CALLS = 128  # of one message
LONGEST_UUID = 256
DETAILS = ("auto", "low", "high", "original")


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """url: empty where a uuid stands for the content. detail: of DETAILS, empty counts as auto."""

    url: str
    param: str  # dotted path of the URL in the request
    uuid: str = ""
    detail: str = ""


Part: TypeAlias = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """arguments: JSON text"""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """content: a string stays one, since templates tell it from a list of parts.

    tool_calls:         of an assistant's, in their order
    tool_call_id, name: of a tool's: which call it answers
    """

    role: str
    content: str | tuple[Part, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""


def read_messages(value: Any, most_images: int = MOST_PARTS) -> tuple[Message, ...]:
    """Raises InvalidRequest naming the path of whatever cannot be used; unknown keys are ignored."""
    if not isinstance(value, list) or not value:
        raise InvalidRequest(
            f"messages is {kind_of(value)}, expected a list with at least one message", param="messages"
        )
    if len(value) > MOST_MESSAGES:
        raise InvalidRequest(f"messages has {len(value)} entries, expected at most {MOST_MESSAGES}", param="messages")
    room = Room(most_images)
    return tuple(_message(entry, f"messages[{index}]", room) for index, entry in enumerate(value))


def images_of(messages: Sequence[Message]) -> list[ImagePart]:
    """In prompt order."""
    return [
        part
        for message in messages
        if not isinstance(message.content, str)
        for part in message.content
        if isinstance(part, ImagePart)
    ]


class Room:
    """What the messages may still hold together, however they share it.

    param: the request's field that holds them
    """

    def __init__(self, most_images: int) -> None:
        self._most_images = most_images
        self._images = most_images
        self._parts = MOST_PARTS_IN_ALL

    def take_parts(self, count: int, param: str = "messages") -> None:
        self._parts -= count
        if self._parts < 0:
            raise InvalidRequest(
                f"the messages have more than {MOST_PARTS_IN_ALL} parts of content together", param=param
            )

    def take_image(self, param: str = "messages") -> None:
        self._images -= 1
        if self._images < 0:
            raise InvalidRequest(
                f"the request has more than {self._most_images} images, as many as this server takes", param=param
            )


def _message(value: Any, path: str, room: Room) -> Message:
    message = object_at(value, path)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequest(f"{path}.role is {shown(role)}, expected one of {', '.join(ROLES)}", param=f"{path}.role")
    if role == "assistant":
        calls = _calls(message.get("tool_calls"), f"{path}.tool_calls")
        content = message.get("content")
        said = "" if content is None else _content(content, f"{path}.content", room)
        return Message("assistant", said, tool_calls=calls)
    content = _content(message.get("content"), f"{path}.content", room)
    if role == "tool":
        call_id, name = (_optional_text(message.get(key), f"{path}.{key}") for key in ("tool_call_id", "name"))
        return Message("tool", content, tool_call_id=call_id, name=name)
    return Message(ROLES[role], content)


def _content(content: Any, path: str, room: Room) -> str | tuple[Part, ...]:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and 0 < len(content) <= MOST_PARTS:
        room.take_parts(len(content))
        return tuple(_part(part, f"{path}[{index}]", room) for index, part in enumerate(content))
    raise InvalidRequest(
        f"{path} is {kind_of(content)}, expected a string or a list of up to {MOST_PARTS} parts", param=path
    )


def _calls(value: Any, path: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MOST_CALLS:
        raise InvalidRequest(f"{path} is {kind_of(value)}, expected a list of up to {MOST_CALLS} calls", param=path)
    return tuple(_call(entry, f"{path}[{index}]") for index, entry in enumerate(value))


def _call(value: Any, path: str) -> ToolCall:
    call = object_at(value, path)
    function = object_at(call.get("function"), f"{path}.function")
    arguments = function.get("arguments")
    if isinstance(arguments, dict):  # not what the API says, but there is no doubt what is meant
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(
        _optional_text(call.get("id"), f"{path}.id"),
        text_at(function.get("name"), f"{path}.function.name"),
        "{}" if arguments is None else text_at(arguments, f"{path}.function.arguments"),
    )


def _part(value: Any, path: str, room: Room) -> Part:
    if isinstance(value, str):
        return TextPart(value)
    part = object_at(value, path)
    kind = part.get("type")
    if kind == "text":
        return TextPart(text_at(part.get("text"), f"{path}.text"))
    if kind == "refusal":  # as an assistant has said it
        return TextPart(text_at(part.get("refusal"), f"{path}.refusal"))
    if kind == "image_url":
        room.take_image()
        return _image(part, path)
    raise InvalidRequest(
        f"{path}.type is {shown(kind)}; this server takes text and image_url parts", param=f"{path}.type"
    )


def _image(part: dict[str, Any], path: str) -> ImagePart:
    """One with a uuid may leave its content out, in any of the ways in which it can be left out."""
    uuid, value, at = part.get("uuid"), part.get("image_url"), f"{path}.image_url"
    if uuid is not None and not (isinstance(uuid, str) and 0 < len(uuid) <= LONGEST_UUID):
        raise InvalidRequest(
            f"{path}.uuid is {shown(uuid)}, expected a string of 1 to {LONGEST_UUID} characters", param=f"{path}.uuid"
        )
    if value is None and uuid is not None:
        return ImagePart("", f"{at}.url", uuid)
    image = object_at(value, at)
    detail = image.get("detail")
    if detail is not None and detail not in DETAILS:
        raise InvalidRequest(
            f"{at}.detail is {shown(detail)}, expected one of {', '.join(DETAILS)}", param=f"{at}.detail"
        )
    url = image.get("url")
    if url is None and uuid is not None:
        url = ""
    return ImagePart(text_at(url, f"{at}.url"), f"{at}.url", uuid or "", detail or "")


def object_at(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path} is {kind_of(value)}, expected an object", param=path)
    return value


def text_at(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{path} is {kind_of(value)}, expected a string", param=path)
    return value


def _optional_text(value: Any, path: str) -> str:
    return "" if value is None else text_at(value, path)


def kind_of(value: Any) -> str:
    names = {type(None): "missing or null", str: "a string", list: "a list", dict: "an object", bool: "a boolean"}
    if isinstance(value, list) and not value:
        return "an empty list"
    return names.get(type(value), "a number")


def shown(value: Any) -> str:
    """A value of a stranger's, short enough for a message."""
    if not isinstance(value, str):
        return kind_of(value)
    return repr(value if len(value) <= 40 else value[:37] + "...")
