"""The items of a response as they grow, and the events that tell of it in OpenAI's order."""

import json
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

from triptych.router.api.choices import ToolCallDelta


class Events:
    """Server-sent events, numbered through."""

    def __init__(self) -> None:
        self._number = -1

    def of(self, kind: str, **fields: Any) -> str:
        self._number += 1
        data = {"type": kind, "sequence_number": self._number, **fields}
        return f"event: {kind}\ndata: {json.dumps(data)}\n\n"

    def text_delta(self, item_id: str, output_index: int, text: str, logprobs: Sequence[Mapping[str, Any]]) -> str:
        """What nearly every token brings."""
        self._number += 1
        return (
            'event: response.output_text.delta\ndata: {"type": "response.output_text.delta", '
            f'"sequence_number": {self._number}, "item_id": "{item_id}", "output_index": {output_index}, '
            f'"content_index": 0, "delta": {encode_basestring_ascii(text)}, '
            f'"logprobs": {json.dumps(list(logprobs)) if logprobs else "[]"}}}\n\n'
        )


class MessageItem:
    """Text the model says, as one part of one message."""

    def __init__(self, response_id: str, output_index: int, events: Events, wants_logprobs: bool) -> None:
        self.id = f"msg_{response_id}_{output_index}"
        self._index = output_index
        self._events = events
        self._wants_logprobs = wants_logprobs
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def open(self) -> str:
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return self._events.of(
            "response.output_item.added", output_index=self._index, item=self._item("in_progress", [])
        ) + self._events.of(
            "response.content_part.added", item_id=self.id, output_index=self._index, content_index=0, part=part
        )

    def add(self, text: str, logprobs: Sequence[dict[str, Any]]) -> str:
        self._pieces.append(text)
        self._logprobs += logprobs
        return self._events.text_delta(self.id, self._index, text, logprobs)

    def add_logprobs(self, logprobs: Sequence[dict[str, Any]]) -> None:
        """Those that no text has come with."""
        self._logprobs += logprobs

    def close(self, status: str) -> str:
        where = {"item_id": self.id, "output_index": self._index, "content_index": 0}
        text = "".join(self._pieces)
        return (
            self._events.of("response.output_text.done", **where, text=text, logprobs=self._logprobs)
            + self._events.of("response.content_part.done", **where, part=self._part(text))
            + self._events.of("response.output_item.done", output_index=self._index, item=self.whole(status))
        )

    def whole(self, status: str) -> dict[str, Any]:
        return self._item(status, [self._part("".join(self._pieces))])

    def _item(self, status: str, content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": list(content)}

    def _part(self, text: str) -> dict[str, Any]:
        logprobs = self._logprobs if self._wants_logprobs else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


class CallItem:
    """One function call."""

    def __init__(self, response_id: str, output_index: int, events: Events, call: ToolCallDelta) -> None:
        self.id = f"fc_{response_id}_{output_index}"
        self.call_index = call.index
        self._index = output_index
        self._events = events
        self._call_id, self._name = call.id, call.name
        self._pieces: list[str] = []

    def open(self) -> str:
        return self._events.of(
            "response.output_item.added", output_index=self._index, item=self._item("in_progress", "")
        )

    def add(self, arguments: str) -> str:
        if not arguments:
            return ""
        self._pieces.append(arguments)
        return self._events.of(
            "response.function_call_arguments.delta", item_id=self.id, output_index=self._index, delta=arguments
        )

    def close(self, status: str) -> str:
        return self._events.of(
            "response.function_call_arguments.done",
            item_id=self.id,
            output_index=self._index,
            name=self._name,
            arguments="".join(self._pieces),
        ) + self._events.of("response.output_item.done", output_index=self._index, item=self.whole(status))

    def whole(self, status: str) -> dict[str, Any]:
        return self._item(status, "".join(self._pieces))

    def _item(self, status: str, arguments: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": arguments,
        }
