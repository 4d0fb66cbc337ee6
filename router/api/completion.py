"""The JSON of a chat completion in one piece, and what its chunks share with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from triptych.router.api.choices import Delta
from triptych.router.api.usage import Usage


@dataclass(frozen=True, slots=True)
class CompletionHead:
    """Equal in every chunk of one completion."""

    id: str
    created: int
    model: str

    def fields(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def told_usage(usage: Usage) -> dict[str, Any]:
    """prompt_tokens includes the images' placeholders, whose number is told once more beside it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"image_tokens": usage.image_tokens, "cached_tokens": usage.cached_tokens},
    }


def chat_choice(whole: Delta, *, token_ids: bool, logprobs: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": whole.text}
    if whole.tool_calls:
        message["content"] = whole.text or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in whole.tool_calls
        ]
    choice = {
        "index": whole.index,
        "message": message,
        "logprobs": logprobs_of(whole.logprobs) if logprobs else None,
        "finish_reason": whole.finish_reason,
    }
    return choice | {"token_ids": whole.token_ids} if token_ids else choice


def logprobs_of(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"content": list(entries), "refusal": None}
