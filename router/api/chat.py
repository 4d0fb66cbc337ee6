"""POST /v1/chat/completions: how OpenAI words a chat answer."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from triptych.router.api.answers import GenerationEndpoint
from triptych.router.api.choices import Delta
from triptych.router.api.completion import CompletionHead, chat_choice, told_usage
from triptych.router.api.schema import Chat
from triptych.router.api.sse import DONE, ChunkWriter, error_frame
from triptych.router.api.usage import Usage
from triptych.router.pipeline.request import Request
from triptych.router.router import Router


def chat_endpoint(router: Router) -> GenerationEndpoint:
    most_images = router.settings.router.max_images_per_prompt
    return GenerationEndpoint(router, lambda body: Chat.parse(body, most_images), ChatForm)


class ChatForm:
    """One answer to a chat request; an `AnswerForm`."""

    def __init__(self, chat: Chat, request: Request) -> None:
        asked = chat.request
        self._head = CompletionHead(f"chatcmpl-{request.id.hex()}", int(time.time()), asked.model)
        self._logprobs = bool(asked.logprobs)
        self._includes_usage = asked.includes_usage
        self._continuous_usage = asked.continuous_usage
        self._token_ids = bool(asked.return_token_ids)
        self._prompt_token_ids = request.prepared.layout.token_ids.tolist() if self._token_ids else []
        self._writer = ChunkWriter(
            self._head,
            request.prepared.branches,
            token_ids=self._token_ids,
            prompt_token_ids=self._prompt_token_ids,
        )

    def whole(self, wholes: Sequence[Delta], usage: Usage) -> Mapping[str, Any]:
        body = self._head.fields("chat.completion")
        body["choices"] = [chat_choice(each, token_ids=self._token_ids, logprobs=self._logprobs) for each in wholes]
        body["usage"] = told_usage(usage)
        if self._token_ids:
            body["prompt_token_ids"] = self._prompt_token_ids
        return body

    def frames(self, deltas: Sequence[Delta], usage: Usage) -> str:
        told = told_usage(usage) if self._continuous_usage else None
        return "".join([self._writer.frames(delta, told) for delta in deltas])

    def end(self, usage: Usage) -> str:
        return (self._writer.usage(told_usage(usage)) if self._includes_usage else "") + DONE

    def error(self, body: Mapping[str, Any]) -> str:
        return error_frame(body)
