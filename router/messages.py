"""The messages of a chat request, checked by hand: a wrong part is named by its path, which unions cannot do."""

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
}
MOST_MESSAGES = 4096
MOST_PARTS = 4096  # of one message
MOST_PARTS_IN_ALL = 16_384
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
    if role in ("tool", "function") or message.get("tool_calls"):
        raise InvalidRequest("tools are not supported by this server", param=f"{path}.role")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequest(f"{path}.role is {shown(role)}, expected one of {', '.join(ROLES)}", param=f"{path}.role")
    content = message.get("content")
    if isinstance(content, str):
        return Message(ROLES[role], content)
    if isinstance(content, list) and 0 < len(content) <= MOST_PARTS:
        room.take_parts(len(content))
        parts = tuple(_part(part, f"{path}.content[{index}]", room) for index, part in enumerate(content))
        return Message(ROLES[role], parts)
    raise InvalidRequest(
        f"{path}.content is {kind_of(content)}, expected a string or a list of up to {MOST_PARTS} parts",
        param=f"{path}.content",
    )


def _part(value: Any, path: str, room: Room) -> Part:
    if isinstance(value, str):
        return TextPart(value)
    part = object_at(value, path)
    kind = part.get("type")
    if kind == "text":
        return TextPart(text_at(part.get("text"), f"{path}.text"))
    if kind == "image_url":
        room.take_image()
        return _image(part.get("image_url"), f"{path}.image_url", _uuid(part.get("uuid"), f"{path}.uuid"))
    raise InvalidRequest(
        f"{path}.type is {shown(kind)}; this server takes text and image_url parts", param=f"{path}.type"
    )


def _image(value: Any, path: str, uuid: str) -> ImagePart:
    """With a uuid the content may be left out, for one that came with it before."""
    if value is None and uuid:
        return ImagePart("", f"{path}.url", uuid)
    image = object_at(value, path)
    detail = image.get("detail")
    if detail is not None and detail not in DETAILS:
        raise InvalidRequest(
            f"{path}.detail is {shown(detail)}, expected one of {', '.join(DETAILS)}", param=f"{path}.detail"
        )
    url = image.get("url")
    return ImagePart("" if url is None and uuid else text_at(url, f"{path}.url"), f"{path}.url", uuid, detail or "")


def _uuid(value: Any, path: str) -> str:
    """The client's own name for an image, empty for none."""
    if value is None:
        return ""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_UUID:
        raise InvalidRequest(f"{path} is {shown(value)}, expected 1 to {LONGEST_UUID} characters", param=path)
    return value


def object_at(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path} is {kind_of(value)}, expected an object", param=path)
    return value


def text_at(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{path} is {kind_of(value)}, expected a string", param=path)
    return value


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
