"""How OpenAI words a text completion, whole and in pieces."""

import json
import time
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

from triptych.router.api.choices import Delta
from triptych.router.api.completion import CompletionHead, told_usage
from triptych.router.api.completions.read import CompletionChat
from triptych.router.api.schema import Chat
from triptych.router.api.sse import DONE, error_frame
from triptych.router.api.usage import Usage
from triptych.router.pipeline.request import Request


class CompletionForm:
    """The answers to one prompt; an `AnswerForm`. Several prompts share the head of the first."""

    def __init__(self, chat: Chat, request: Request, head: CompletionHead | None = None) -> None:
        assert isinstance(chat, CompletionChat)
        asked = chat.asked
        self.head = head or CompletionHead(f"cmpl-{request.id.hex()}", int(time.time()), asked.model)
        self._first_index = chat.first_index
        self._echo = chat.echo
        self._top = asked.logprobs
        self._includes_usage = bool(asked.stream_options and asked.stream_options.include_usage)
        self._continuous = self._includes_usage and bool(
            asked.stream_options and asked.stream_options.continuous_usage_stats
        )
        self._token_ids = bool(asked.return_token_ids)
        self._prompt_token_ids = request.prepared.layout.token_ids.tolist() if self._token_ids else []
        self._begin = f"data: {json.dumps(self.head.fields('text_completion'))[:-1]}, "
        self._begun = [False] * request.prepared.branches
        self._offsets = [len(self._echo)] * request.prepared.branches  # of the next token in the text
        self._is_plain = self._top is None and not self._token_ids and not self._continuous

    def whole(self, wholes: Sequence[Delta], usage: Usage) -> Mapping[str, Any]:
        return self.body(self.choices(wholes), usage)

    def choices(self, wholes: Sequence[Delta]) -> list[dict[str, Any]]:
        return [self._choice(whole, self._echo + whole.text) for whole in wholes]

    def body(self, choices: Sequence[Mapping[str, Any]], usage: Usage) -> Mapping[str, Any]:
        return self.head.fields("text_completion") | {"choices": list(choices), "usage": told_usage(usage)}

    def frames(self, deltas: Sequence[Delta], usage: Usage) -> str:
        return "".join([self._frame(delta, usage) for delta in deltas])

    def end(self, usage: Usage) -> str:
        if not self._includes_usage:
            return DONE
        return f'{self._begin}"choices": [], "usage": {json.dumps(told_usage(usage))}}}\n\n{DONE}'

    def error(self, body: Mapping[str, Any]) -> str:
        return error_frame(body)

    def _frame(self, delta: Delta, usage: Usage) -> str:
        text = delta.text
        if not self._begun[delta.index]:
            self._begun[delta.index] = True
            text = self._echo + text
        if self._is_plain:
            finish = f'"{delta.finish_reason}"' if delta.finish_reason else "null"
            return (
                f'{self._begin}"choices": [{{"index": {self._first_index + delta.index}, '
                f'"text": {encode_basestring_ascii(text)}, "logprobs": null, "finish_reason": {finish}}}]}}\n\n'
            )
        tail = f', "usage": {json.dumps(told_usage(usage))}' if self._continuous else ""
        return f'{self._begin}"choices": [{json.dumps(self._choice(delta, text))}]{tail}}}\n\n'

    def _choice(self, delta: Delta, text: str) -> dict[str, Any]:
        choice = {
            "index": self._first_index + delta.index,
            "text": text,
            "logprobs": self._logprobs(delta) if self._top is not None else None,
            "finish_reason": delta.finish_reason or None,
        }
        if self._token_ids:
            choice |= {"token_ids": delta.token_ids, "prompt_token_ids": self._prompt_token_ids}
        return choice

    def _logprobs(self, delta: Delta) -> dict[str, Any]:
        """OpenAI's older shape: lists side by side."""
        offsets = []
        for entry in delta.logprobs:
            offsets.append(self._offsets[delta.index])
            self._offsets[delta.index] += len(entry["token"])
        return {
            "tokens": [entry["token"] for entry in delta.logprobs],
            "token_logprobs": [entry["logprob"] for entry in delta.logprobs],
            "top_logprobs": list(map(_top, delta.logprobs, delta.token_names)),
            "text_offset": offsets,
        }


def _top(entry: Mapping[str, Any], name: str) -> dict[str, float]:
    """The likeliest tokens, and the one that was taken as it is told in the text: a special one has none of it.

    name: of the one that was taken, among the likeliest
    """
    others = {each["token"]: each["logprob"] for each in entry["top_logprobs"] if each["token"] != name}
    return others | {entry["token"]: entry["logprob"]}
