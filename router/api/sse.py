"""A chat completion as server-sent events, to the byte what clients were measured to read.

`data: ` and one line of JSON, LF only, no comments. The role comes with the first token of a choice and not before:
clients take the first chunk for the first token. A failure is an `event: error` and the stream ends without [DONE],
the only form that every client takes for a failure.
"""

import json
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

from triptych.router.api.choices import Delta, ToolCallDelta
from triptych.router.api.completion import CompletionHead, logprobs_of

DONE = "data: [DONE]\n\n"
_PLAIN_END = '}, "logprobs": null, "finish_reason": null}]}\n\n'


class ChunkWriter:
    """Frames of one completion; all of them but text and logprobs is built ahead."""

    def __init__(
        self, head: CompletionHead, branches: int, *, token_ids: bool, prompt_token_ids: Sequence[int]
    ) -> None:
        fields = head.fields("chat.completion.chunk")
        self._begin = f"data: {json.dumps(fields)[:-1]}, "
        self._first_begin = self._begin
        if token_ids:
            self._first_begin += f'"prompt_token_ids": {json.dumps(list(prompt_token_ids))}, '
        self._token_ids = token_ids
        self._plain = [
            f'{self._begin}"choices": [{{"index": {index}, "delta": {{"content": ' for index in range(branches)
        ]
        self._has_role = [False] * branches
        self._pending: list[list[dict[str, Any]]] = [[] for _ in range(branches)]  # logprobs of text held back

    def frames(self, delta: Delta, usage: Mapping[str, Any] | None = None) -> str:
        """What a delta adds to the stream: role, content, finish, as far as it has them."""
        pending = self._pending[delta.index]
        if self._has_role[delta.index] and not (
            self._token_ids or usage or pending or delta.logprobs or delta.finish_reason or delta.tool_calls
        ):
            return f"{self._plain[delta.index]}{encode_basestring_ascii(delta.text)}{_PLAIN_END}"
        frames = ""
        if not self._has_role[delta.index]:
            self._has_role[delta.index] = True
            frames += self._frame(delta, '{"role": "assistant", "content": ""}', usage, begin=self._first_begin)
            self._first_begin = self._begin
        pending += delta.logprobs
        # A token without text (half a character, a special one, text held back for a stop string) is told as well:
        # clients take the time of each token from its chunk.
        if delta.text or not (delta.finish_reason or delta.tool_calls):
            content = f'{{"content": {encode_basestring_ascii(delta.text)}}}'
            frames += self._frame(delta, content, usage, self._take_logprobs(delta.index), delta.token_ids)
            delta.token_ids = []
        if delta.tool_calls:
            calls = json.dumps({"tool_calls": [_told_call(call) for call in delta.tool_calls]})
            frames += self._frame(delta, calls, usage, self._take_logprobs(delta.index), delta.token_ids)
            delta.token_ids = []
        if delta.finish_reason:
            logprobs = self._take_logprobs(delta.index)
            frames += self._frame(delta, "{}", usage, logprobs, delta.token_ids, delta.finish_reason)
        return frames

    def usage(self, usage: Mapping[str, Any]) -> str:
        """The last chunk, for those who asked for it."""
        return f'{self._begin}"choices": [], "usage": {json.dumps(usage)}}}\n\n'

    def _frame(
        self,
        delta: Delta,
        content: str,
        usage: Mapping[str, Any] | None,
        logprobs: Sequence[dict[str, Any]] = (),
        token_ids: Sequence[int] = (),
        finish_reason: str = "",
        begin: str = "",
    ) -> str:
        told = json.dumps(logprobs_of(logprobs)) if logprobs else "null"
        finish = f'"{finish_reason}"' if finish_reason else "null"
        ids = f', "token_ids": {json.dumps(list(token_ids))}' if self._token_ids else ""
        tail = f', "usage": {json.dumps(usage)}' if usage is not None else ""
        return (
            f'{begin or self._begin}"choices": [{{"index": {delta.index}, "delta": {content}, "logprobs": {told}, '
            f'"finish_reason": {finish}{ids}}}]{tail}}}\n\n'
        )

    def _take_logprobs(self, index: int) -> Sequence[dict[str, Any]]:
        taken, self._pending[index] = self._pending[index], []
        return taken


def _told_call(call: ToolCallDelta) -> dict[str, Any]:
    """Clients join what comes under one index: names and ids twice would be joined too."""
    if not call.id:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def error_frame(body: Mapping[str, Any]) -> str:
    """The end of a stream that failed."""
    return f"event: error\ndata: {json.dumps(body)}\n\n"
