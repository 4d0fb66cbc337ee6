"""Tells tool calls from the text around them, as the text comes: calls as Hermes and Qwen write them.

    <tool_call>
    {"name": "weather", "arguments": {"city": "Ulm"}}
    </tool_call>

White space beside a call is not content. What begins like a call and is none goes out as content, to the letter.
An answer that is cut off within a call says what there is of its arguments, and nothing where there are none yet.
"""

import json
import re
import secrets
from collections.abc import Callable
from typing import Any

from pydantic_core import from_json

from triptych.router.api.choices import ToolCallDelta

BEGIN = "<tool_call>"
END = "</tool_call>"

# What comes before arguments that can be told as they come: nearly every call.
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)', re.DOTALL)
_LONGEST_HEAD = 1024
_SPACE = re.compile(r"\s*")
_CLOSE = re.compile(r"\s*\}?\s*")
_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_MOST_SPACE = 256


class ToolCallParser:
    """Of one choice; an `AnswerParser`. However the text is cut into pieces, all deltas together are the same."""

    def __init__(self, must_call: bool = False) -> None:
        """must_call: a grammar lets nothing but calls through"""
        self.has_calls = False
        self._must_call = must_call
        self._index = -1  # of the call that has begun last
        self._held = ""
        self._space = ""  # before the call that has begun last
        self._content: list[str] = []
        self._calls: list[ToolCallDelta] = []
        self._step: Callable[[], bool] = self._read_content
        self._depth = 0
        self._in_string = False
        self._escaped = False

    @property
    def in_call(self) -> bool:
        return self._step in (self._read_arguments, self._read_close)

    def feed(self, text: str) -> tuple[str, list[ToolCallDelta]]:
        """What some text adds to the content, and to calls."""
        self._held += text
        while self._step():
            pass
        return self._take()

    def flush(self, was_cut: bool = False) -> tuple[str, list[ToolCallDelta]]:
        """What was held back, now that no text follows.

        was_cut: the answer would have gone on, so that what may become a call is the beginning of one
        """
        held, self._held = self._held, ""
        if self._step == self._read_head:
            if not self._add_whole(held):
                is_begun = was_cut and (self._must_call or _may_become_call(held))
                self._content.append(self._space if is_begun else self._space + BEGIN + held)
        elif self._step == self._read_content and not (self.has_calls and held.isspace()):
            is_begun = was_cut and self._must_call and _begun(held, BEGIN) > 0
            self._content.append("" if is_begun else held)
        self._step = self._read_content
        return self._take()

    def _take(self) -> tuple[str, list[ToolCallDelta]]:
        content, calls = "".join(self._content), self._calls
        self._content, self._calls = [], []
        return content, calls

    # Each step uses up some of what is held and says whether there may be more to do.

    def _read_content(self) -> bool:
        at = self._held.find(BEGIN)
        if at >= 0:
            shown = _without_space(self._held, at)
            self._content.append(self._held[:shown])
            self._space = self._held[shown:at]
            self._held = self._held[at + len(BEGIN) :]
            self._step = self._read_head
            return True
        ready = len(self._held) - _begun(self._held, BEGIN)
        shown = _without_space(self._held, ready)
        self._content.append(self._held[:shown])
        self._held = self._held[shown:]
        return False

    def _read_head(self) -> bool:
        end = self._held.find(END)
        body = self._held if end < 0 else self._held[:end]
        # Always the same beginning, so that it makes no difference in how many pieces it came.
        head = _HEAD.match(body[:_LONGEST_HEAD])
        name = _name(head[1]) if head else ""
        if head and name:
            self._begin_call(name)
            self._held = self._held[head.end() :]
            self._step = self._read_arguments
            return True
        if end < 0:
            return False
        if not self._add_whole(body):
            self._content.append(self._space + BEGIN + body + END)
        self._held = self._held[end + len(END) :]
        self._step = self._read_content
        return True

    def _read_arguments(self) -> bool:
        end = self._end_of_arguments()
        if end:
            self._calls.append(ToolCallDelta(self._index, arguments=self._held[:end]))
            self._held = self._held[end:]
        if self._depth:
            return False
        self._step = self._read_close
        return True

    def _read_close(self) -> bool:
        close = _CLOSE.match(self._held)
        rest = self._held[close.end() if close else 0 :]
        if END.startswith(rest) and rest != END:
            return False  # may become the end
        self._held = rest.removeprefix(END)
        self._step = self._read_content
        return True

    def _begin_call(self, name: str) -> None:
        self.has_calls = True
        self._index += 1
        self._depth, self._in_string, self._escaped = 0, False, False
        self._calls.append(ToolCallDelta(self._index, f"call_{secrets.token_hex(12)}", name))

    def _add_whole(self, body: str) -> bool:
        """A call in another order, or with other arguments, than can be told as it comes."""
        call = _whole_call(body)
        if call is None:
            return False
        name, arguments = call
        self._begin_call(name)
        self._calls[-1].arguments = arguments
        return True

    def _end_of_arguments(self) -> int:
        """How much of what is held belongs to the arguments, an object; depth is 0 at its end."""
        text, at = self._held, 0
        if self._escaped and text:
            at, self._escaped = 1, False
        while at < len(text):
            found = (_IN_STRING if self._in_string else _STRUCTURE).search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            mark = found[0]
            if mark == "\\":
                self._escaped = at == len(text)
                at += not self._escaped
            elif mark == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if mark in "{[" else -1
                if not self._depth:
                    return at
        return len(text)


def _without_space(text: str, end: int) -> int:
    """Where the white space before `end` begins: of a longer run, which would be looked at again with each token, the
    last of it."""
    return max(len(text[:end].rstrip()), end - _MOST_SPACE)


def _begun(text: str, mark: str) -> int:
    """Length of the longest end of the text that the mark begins with."""
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((length for length in lengths if mark.startswith(text[-length:])), 0)


def _name(quoted: str) -> str:
    try:
        return str(from_json(quoted))
    except ValueError:
        return ""


def _whole_call(body: str) -> tuple[str, str] | None:
    """Name and arguments' JSON of a call; None for what is none."""
    call = _object(body)
    if call is None or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    key = "arguments" if "arguments" in call else "parameters"
    given = call.get(key)
    if given is None:
        return call["name"], "{}"
    if isinstance(given, str):  # some write JSON in JSON
        return None if _object(given) is None else (call["name"], given)
    return (call["name"], _raw_member(body, key)) if isinstance(given, dict) else None


def _may_become_call(body: str) -> bool:
    """Whether it is a JSON object that lacks its end, or what comes before one."""
    body = body[: len(body) - _begun(body, END)].strip()
    if not body:
        return True
    try:
        is_whole = from_json(body) is not None
    except ValueError:
        is_whole = False
    if is_whole:
        return False
    try:
        return isinstance(from_json(body, allow_partial=True), dict)
    except ValueError:
        return False


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = from_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _raw_member(text: str, key: str) -> str:
    """The last member of this key, as it is written in the text of a JSON object that has it."""
    at, raw, decoder = text.index("{") + 1, "", json.JSONDecoder(strict=False)
    while (start := text.find('"', at)) >= 0:
        name, at = decoder.raw_decode(text, start)
        start = _SPACE.match(text, text.index(":", at) + 1).end()  # type: ignore[union-attr]
        _, at = decoder.raw_decode(text, start)
        if name == key:
            raw = text[start:at]
    return raw
