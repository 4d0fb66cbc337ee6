"""How OpenAI words a response, whole and as events."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from triptych.router.api.choices import Delta
from triptych.router.api.responses.events import CallItem, Events, MessageItem
from triptych.router.api.responses.read import ResponsesChat
from triptych.router.api.schema import Chat
from triptych.router.api.usage import Usage
from triptych.router.pipeline.request import Request


class ResponseForm:
    """One response; an `AnswerForm`. A whole one is a stream of one delta whose events nobody reads."""

    def __init__(self, chat: Chat, request: Request) -> None:
        assert isinstance(chat, ResponsesChat)
        self._chat = chat
        self._hex = request.id.hex()
        self._created_at = int(time.time())
        self._events = Events()
        self._items: list[MessageItem | CallItem] = []
        self._is_open = False
        self._has_begun = False
        self._finish_reason = ""
        self._pending: list[dict[str, Any]] = []  # logprobs of text held back

    def whole(self, wholes: Sequence[Delta], usage: Usage) -> Mapping[str, Any]:
        self.frames(wholes, usage)
        return self._ended(usage)

    def frames(self, deltas: Sequence[Delta], usage: Usage) -> str:
        frames = "" if self._has_begun else self._begin()
        return frames + "".join([self._add(delta) for delta in deltas])

    def end(self, usage: Usage) -> str:
        ended = self._ended(usage)
        return self._events.of(f"response.{ended['status']}", response=ended)

    def error(self, body: Mapping[str, Any]) -> str:
        """Told twice: clients of the older kind raise on an error at the top, the others read response.failed."""
        error = body["error"]
        told = {"code": error["code"] or "server_error", "message": error["message"]}
        failed = self._response("failed", None, [item.whole("incomplete") for item in self._items]) | {"error": told}
        return self._events.of(
            "error", code=error["code"], message=error["message"], param=error["param"], error=error
        ) + self._events.of("response.failed", response=failed)

    def _begin(self) -> str:
        self._has_begun = True
        begun = self._response("in_progress", None, [])
        return self._events.of("response.created", response=begun) + self._events.of(
            "response.in_progress", response=begun
        )

    def _add(self, delta: Delta) -> str:
        self._pending += delta.text_logprobs if self._chat.asked_logprobs else []
        frames = ""
        if delta.text:
            message, frames = self._message()
            frames += message.add(delta.text, self._pending)
            self._pending = []
        for call in delta.tool_calls:
            last = self._items[-1] if self._items and self._is_open else None
            if not isinstance(last, CallItem) or last.call_index != call.index:
                last = CallItem(self._hex, self._next_index(), self._events, call)
                frames += self._close("completed") + self._open(last)
            frames += last.add(call.arguments)
        if delta.finish_reason:
            self._finish_reason = delta.finish_reason
            if not self._items:
                frames += self._message()[1]  # an answer without a word is a message, too
            last = self._items[-1]
            if self._is_open and isinstance(last, MessageItem):
                last.add_logprobs(self._pending)  # of tokens without text, as the one that ends an answer
            frames += self._close(self._item_status)
        return frames

    def _message(self) -> tuple[MessageItem, str]:
        """The message that text goes into, and the events of its beginning, if it begins here."""
        last = self._items[-1] if self._items and self._is_open else None
        if isinstance(last, MessageItem):
            return last, ""
        frames = self._close("completed")
        message = MessageItem(self._hex, self._next_index(), self._events, self._chat.asked_logprobs)
        return message, frames + self._open(message)

    def _next_index(self) -> int:
        return len(self._items)

    def _open(self, item: MessageItem | CallItem) -> str:
        self._items.append(item)
        self._is_open = True
        return item.open()

    def _close(self, status: str) -> str:
        if not self._is_open:
            return ""
        self._is_open = False
        return self._items[-1].close(status)

    @property
    def _item_status(self) -> str:
        return "incomplete" if self._finish_reason == "length" else "completed"

    def _ended(self, usage: Usage) -> dict[str, Any]:
        last = len(self._items) - 1
        output = [
            item.whole(self._item_status if index == last else "completed") for index, item in enumerate(self._items)
        ]
        ended = self._response(self._item_status, usage, output)
        if self._finish_reason == "length":
            return ended | {"incomplete_details": {"reason": "max_output_tokens"}}
        return ended | {"completed_at": int(time.time())}

    def _response(self, status: str, usage: Usage | None, output: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"resp_{self._hex}",
            "object": "response",
            "created_at": self._created_at,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            **self._chat.echoed,
            "output": list(output),
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            "usage": _told(usage) if usage is not None else None,
        }


def _told(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": 0,
            "image_tokens": usage.image_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
