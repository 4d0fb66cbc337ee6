"""How Anthropic words a message, whole and as events."""

import json
import math
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

from triptych.router.api.anthropic.errors import anthropic_error
from triptych.router.api.choices import Delta, ToolCallDelta
from triptych.router.api.schema import Chat
from triptych.router.api.usage import Usage
from triptych.router.pipeline.request import Request

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class MessageForm:
    """One message; an `AnswerForm`."""

    def __init__(self, chat: Chat, request: Request) -> None:
        self._id = f"msg_{request.id.hex()}"
        self._model = chat.request.model
        self._has_begun = False
        self._index = -1  # of the block that is open, or was last
        self._open = ""  # its type; empty where none is
        self._call = -1  # which call it is, if it is one
        self._finish: Delta | None = None

    def whole(self, wholes: Sequence[Delta], usage: Usage) -> Mapping[str, Any]:
        (delta,) = wholes
        content: list[dict[str, Any]] = [{"type": "text", "text": delta.text}] if delta.text else []
        for call in delta.tool_calls:
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _object(call.arguments)})
        return self._message(content, _told(usage)) | _ending(delta)

    def frames(self, deltas: Sequence[Delta], usage: Usage) -> str:
        frames = ""
        if not self._has_begun:
            self._has_begun = True
            frames = _event("message_start", message=self._message([], _told(usage)))
        return frames + "".join([self._add(delta) for delta in deltas])

    def end(self, usage: Usage) -> str:
        ending = _ending(self._finish) if self._finish is not None else _ending(Delta(0, finish_reason="stop"))
        return self._close() + _event("message_delta", delta=ending, usage=_told(usage)) + _event("message_stop")

    def error(self, body: Mapping[str, Any]) -> str:
        return f"event: error\ndata: {json.dumps(anthropic_error(body))}\n\n"

    def _add(self, delta: Delta) -> str:
        frames = ""
        if delta.text:
            if self._open != "text":
                frames = self._close() + self._begin("text", {"type": "text", "text": ""})
            frames += (
                f'event: content_block_delta\ndata: {{"type": "content_block_delta", "index": {self._index}, '
                f'"delta": {{"type": "text_delta", "text": {encode_basestring_ascii(delta.text)}}}}}\n\n'
            )
        for call in delta.tool_calls:
            frames += self._add_call(call)
        if delta.finish_reason:
            self._finish = delta
        return frames

    def _add_call(self, call: ToolCallDelta) -> str:
        frames = ""
        if self._open != "tool_use" or self._call != call.index:
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            frames = self._close() + self._begin("tool_use", block)
            self._call = call.index
        if not call.arguments:
            return frames
        piece = {"type": "input_json_delta", "partial_json": call.arguments}
        return frames + _event("content_block_delta", index=self._index, delta=piece)

    def _begin(self, kind: str, block: Mapping[str, Any]) -> str:
        self._index += 1
        self._open = kind
        return _event("content_block_start", index=self._index, content_block=block)

    def _close(self) -> str:
        if not self._open:
            return ""
        self._open = ""
        return _event("content_block_stop", index=self._index)

    def _message(self, content: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": list(content),
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def _ending(delta: Delta) -> dict[str, Any]:
    if delta.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": delta.stop}
    return {"stop_reason": _STOP_REASONS.get(delta.finish_reason, "end_turn"), "stop_sequence": None}


def _told(usage: Usage) -> dict[str, Any]:
    """Anthropic counts what came from the cache apart."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _object(arguments: str) -> dict[str, Any]:
    """A call's input; an answer that was cut off may leave half of one."""
    try:
        value = json.loads(arguments or "{}", parse_float=_number, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _number(text: str) -> float | None:
    """What no JSON can hold again is null, as JavaScript has it."""
    value = float(text)
    return value if math.isfinite(value) else None
