"""The JSON of a chat completion in one piece, and what its chunks share with it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from triptych.journey import RequestId
from triptych.router.choices import Choices, Delta
from triptych.router.request import Request


@dataclass(frozen=True, slots=True)
class CompletionHead:
    """Equal in every chunk of one completion."""

    id: str
    created: int
    model: str

    @classmethod
    def of(cls, request_id: RequestId, model: str) -> "CompletionHead":
        return cls(f"chatcmpl-{request_id.hex()}", int(time.time()), model)

    def fields(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def usage_of(request: Request, completion_tokens: int) -> dict[str, Any]:
    """prompt_tokens includes the images' placeholders, whose number is told once more beside it."""
    layout = request.prepared.layout
    return {
        "prompt_tokens": layout.num_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": layout.num_tokens + completion_tokens,
        "prompt_tokens_details": {"image_tokens": layout.num_rows, "cached_tokens": request.cached_tokens},
    }


async def whole_completion(
    request: Request, choices: Choices, head: CompletionHead, *, token_ids: bool, logprobs: bool
) -> dict[str, Any]:
    """The body, once every choice has finished. Raises what ended the request early."""
    wholes = [Delta(index) for index in range(request.prepared.branches)]
    while tokens := await request.receive():
        for delta in choices.feed(tokens):
            _append(wholes[delta.index], delta)
    body = head.fields("chat.completion")
    body["choices"] = [_choice(whole, token_ids=token_ids, logprobs=logprobs) for whole in wholes]
    body["usage"] = usage_of(request, choices.completion_tokens)
    if token_ids:
        body["prompt_token_ids"] = request.prepared.layout.token_ids.tolist()
    return body


def logprobs_of(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"content": list(entries), "refusal": None}


def _append(whole: Delta, delta: Delta) -> None:
    whole.text += delta.text
    whole.token_ids += delta.token_ids
    whole.logprobs += delta.logprobs
    whole.finish_reason = delta.finish_reason


def _choice(whole: Delta, *, token_ids: bool, logprobs: bool) -> dict[str, Any]:
    choice = {
        "index": whole.index,
        "message": {"role": "assistant", "content": whole.text},
        "logprobs": logprobs_of(whole.logprobs) if logprobs else None,
        "finish_reason": whole.finish_reason,
    }
    return choice | {"token_ids": whole.token_ids} if token_ids else choice
