"""From the body of POST /v1/completions to one question for each prompt."""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from triptych.errors import InvalidRequest
from triptych.models.card import ModelCard
from triptych.router.api.completions.schema import (
    DEFAULT_MAX_TOKENS,
    MOST_CHOICES,
    MOST_PROMPTS,
    REFUSED,
    CompletionRequest,
)
from triptych.router.api.schema import MOST_STOPS, Chat, ChatRequest, invalid_request
from triptych.router.api.tools.rules import NO_RULES, OutputRules
from triptych.router.pipeline.prompt import PromptBuilder

_SAME_AS_CHAT = (
    *("model", "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    "return_token_ids",
)


class CompletionChat(Chat):
    """One prompt of the request; the first of several knows the others.

    echo:        what comes before the answer's text
    first_index: of its choices among all of the request's
    """

    asked: CompletionRequest
    echo: str = ""
    first_index: int = 0
    others: tuple["CompletionChat", ...] = ()


def reader_of(card: ModelCard, prompts: PromptBuilder) -> Callable[[bytes], CompletionChat]:
    """What reads bodies for a model. Raises InvalidRequest with the path of the field at fault."""

    def read(body: bytes) -> CompletionChat:
        try:
            asked = CompletionRequest.model_validate_json(body)
        except ValidationError as error:
            raise invalid_request(error) from None
        _check_together(asked)
        texts = _Texts(card, prompts)
        all_prompts, n = texts.read(asked.prompt), asked.n or 1
        if len(all_prompts) * n > MOST_CHOICES:
            raise InvalidRequest(
                f"{len(all_prompts)} prompts with n {n} are more than {MOST_CHOICES} choices", param="n"
            )
        constraint = asked.constraint()
        rules = NO_RULES if constraint is None else OutputRules(constraint.grammar, constraint.param)
        chats = [
            _chat(asked, rules, prompt, texts.echo(prompt) if asked.echo else "", index * n)
            for index, prompt in enumerate(all_prompts)
        ]
        chats[0].others = tuple(chats[1:])
        return chats[0]

    return read


def _chat(
    asked: CompletionRequest, rules: OutputRules, prompt: str | tuple[int, ...], echo: str, first_index: int
) -> CompletionChat:
    given = {name: getattr(asked, name) for name in _SAME_AS_CHAT}
    request = ChatRequest.model_construct(
        messages=[],
        max_tokens=DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens,
        stop=read_stops(asked.stop, "stop"),
        logprobs=asked.logprobs is not None,
        top_logprobs=asked.logprobs,
        **given,
        **asked.sampling(),
    )
    chat = CompletionChat(request, (), prompt=prompt, rules=rules)
    chat.asked, chat.echo, chat.first_index = asked, echo, first_index
    return chat


def _check_together(asked: CompletionRequest) -> None:
    if asked.suffix not in (None, ""):
        raise InvalidRequest(f"suffix: {REFUSED['suffix']}", param="suffix")
    if asked.best_of is not None and asked.best_of != (asked.n or 1):
        raise InvalidRequest(f"best_of: {REFUSED['best_of']}", param="best_of")
    if asked.stream_options is not None and not asked.stream:
        raise InvalidRequest("stream_options is only allowed with stream true", param="stream_options")
    if asked.echo and asked.logprobs is not None:
        raise InvalidRequest("logprobs of the prompt are not computed; ask for echo or for logprobs", param="echo")


def read_stops(value: Any, path: str) -> list[str]:
    """Stop strings: none, one, or a list."""
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise InvalidRequest(f"{path}: expected a string or a list of strings, none of them empty", param=path)
    if len(stops) > MOST_STOPS:
        raise InvalidRequest(f"{path}: {len(stops)} entries, expected at most {MOST_STOPS}", param=path)
    return stops


class _Texts:
    """Prompts as they may be given."""

    def __init__(self, card: ModelCard, prompts: PromptBuilder) -> None:
        self._most_ids = card.max_model_len
        self._num_ids = prompts.tokenizer.get_vocab_size(with_added_tokens=True)
        self._placeholder = card.adapter.placeholder_id
        self._tokenizer = prompts.tokenizer

    def read(self, value: Any) -> list[str | tuple[int, ...]]:
        if isinstance(value, str):
            return [self._text(value, "prompt")]
        if not isinstance(value, list) or not value:
            raise InvalidRequest("prompt: expected a text, token ids, or a list of either", param="prompt")
        if _is_id(value[0]):
            return [self._ids(value, "prompt")]
        if len(value) > MOST_PROMPTS:
            raise InvalidRequest(f"prompt has {len(value)} entries, expected at most {MOST_PROMPTS}", param="prompt")
        return [self._one(each, f"prompt[{index}]") for index, each in enumerate(value)]

    def echo(self, prompt: str | tuple[int, ...]) -> str:
        if isinstance(prompt, str):
            return prompt
        text: str = self._tokenizer.decode(prompt, skip_special_tokens=False)
        return text

    def _one(self, value: Any, path: str) -> str | tuple[int, ...]:
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, list):
            return self._ids(value, path)
        raise InvalidRequest(f"{path}: expected a text or a list of token ids", param=path)

    def _text(self, value: str, path: str) -> str:
        if not value:
            raise InvalidRequest(f"{path} is empty, expected at least one token", param=path)
        return value

    def _ids(self, ids: Sequence[Any], path: str) -> tuple[int, ...]:
        if not ids:
            raise InvalidRequest(f"{path} is empty, expected at least one token", param=path)
        for at, id_ in enumerate(ids[: self._most_ids + 1]):
            if not _is_id(id_) or not 0 <= id_ < self._num_ids:
                raise InvalidRequest(
                    f"{path}[{at}] is no token id, expected a number from 0 to {self._num_ids - 1}",
                    param=f"{path}[{at}]",
                )
            if id_ == self._placeholder:
                raise InvalidRequest(
                    f"{path}[{at}] is the token of images, which belong into /v1/chat/completions",
                    param=f"{path}[{at}]",
                )
        return tuple(ids[: self._most_ids + 1])  # more are too many anyway


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
