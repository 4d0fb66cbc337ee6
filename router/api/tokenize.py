"""POST /tokenize and /detokenize: ids of a text and back, for load generators that cut prompts to length."""

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, FailFast, Field, StrictBool, ValidationError, WithJsonSchema
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from triptych.errors import ContextTooLong, InvalidRequest, UnknownModel
from triptych.router.api.sampling_fields import Whole
from triptych.router.api.schema import Chat, invalid_request
from triptych.router.edge.body import read_body, unless_gone
from triptych.router.edge.budget import Holding
from triptych.router.edge.caller import caller_of
from triptych.router.model_set import ModelSet
from triptych.router.observe.timeline import Timeline
from triptych.router.router import Router

IGNORED: Mapping[str, str] = {
    "add_special_tokens": "nothing is ever added to a prompt",
    "add_generation_prompt": "messages end where the model begins to answer",
}


class TokenizeRequest(BaseModel):
    """Either a text or the messages of a chat, in which images count as in an answer's usage."""

    model: str | None = Field(None, description="the served model's name")
    prompt: str | None = Field(None, description="a text; what looks like a special token in it is characters")
    messages: Annotated[
        Any,
        WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "null"}]}),
        Field(description="as of /v1/chat/completions"),
    ] = None
    return_token_strs: StrictBool | None = Field(None, description="the vocabulary's own words beside the ids")


class DetokenizeRequest(BaseModel):
    model: str | None = Field(None, description="the served model's name")
    # The first wrong one ends it: the library would keep what is wrong with each of half a million.
    tokens: Annotated[list[Whole], FailFast()] = Field(description="token ids")


class TokenizeEndpoint:
    """Raises InvalidRequest, and ContextTooLong for what no prompt could hold."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http, router = HTTPRequest(scope, receive), self._router
        with router.budget.holding() as holding:
            data = await _body(http, router, holding)
            asked = await _in_thread(router, _tokenize_request, data)
            del data
            _check_model(asked.model, router)
            served = router.serving
            ids = await self._ids_of_messages(http, asked, holding, served) if asked.prompt is None else None
            if ids is None:
                ids = await self._ids_of_text(asked.prompt or "", served)
        told: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": served.max_model_len}
        if asked.return_token_strs:
            told["token_strs"] = [served.prompts.tokenizer.id_to_token(id_) or "" for id_ in ids]
        await JSONResponse(told)(scope, receive, send)

    async def _ids_of_text(self, text: str, served: ModelSet) -> list[int]:
        most, prompts = served.max_model_len, served.prompts
        _check_length(prompts.fewest_tokens(len(text)), most, "prompt", "at least ")  # before seconds are spent
        ids = list(await _in_thread(self._router, prompts.encode_text, text))
        _check_length(len(ids), most, "prompt")  # the answer is no longer than a prompt either
        return ids

    async def _ids_of_messages(
        self, http: HTTPRequest, asked: TokenizeRequest, holding: Holding, served: ModelSet
    ) -> list[int]:
        if asked.messages is None:
            raise InvalidRequest("prompt is missing: a text, or messages in its place", param="prompt")
        router = self._router
        read = partial(_chat, router.name, asked.messages, router.settings.router.max_images_per_prompt)
        chat = await _in_thread(router, read)
        preparing = router.prepare(chat, holding, Timeline(), caller_of(http.scope), served)
        prepared = await unless_gone(http.receive, preparing)
        ids: list[int] = prepared.layout.token_ids.tolist()
        return ids


class DetokenizeEndpoint:
    """Raises InvalidRequest for what is no token, and for more than any prompt holds."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http, router = HTTPRequest(scope, receive), self._router
        with router.budget.holding() as holding:
            data = await _body(http, router, holding)
            asked = await _in_thread(router, _detokenize_request, data)
        _check_model(asked.model, router)
        _check_length(len(asked.tokens), router.serving.max_model_len, "tokens")
        tokenizer = router.prompts.tokenizer
        num_ids = tokenizer.get_vocab_size(with_added_tokens=True)
        wrong = next((at for at, id_ in enumerate(asked.tokens) if not 0 <= id_ < num_ids), None)
        if wrong is not None:
            raise InvalidRequest(
                f"tokens[{wrong}] is no token id, expected a number from 0 to {num_ids - 1}",
                param=f"tokens[{wrong}]",
            )
        decode = partial(tokenizer.decode, asked.tokens, skip_special_tokens=False)
        text = await _in_thread(router, decode)
        await JSONResponse({"prompt": text})(scope, receive, send)


async def _body(http: HTTPRequest, router: Router, holding: Holding) -> bytes:
    limits = router.settings.router
    return (await read_body(http, limits.max_body_bytes, limits.stage_timeout_seconds, holding)).data


async def _in_thread(router: Router, work: Any, *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(router.threads.texts, work, *arguments)


def _tokenize_request(body: bytes) -> TokenizeRequest:
    try:
        return TokenizeRequest.model_validate_json(body)
    except ValidationError as error:
        raise invalid_request(error) from None


def _detokenize_request(body: bytes) -> DetokenizeRequest:
    try:
        return DetokenizeRequest.model_validate_json(body)
    except ValidationError as error:
        raise invalid_request(error) from None


def _chat(model: str, messages: Any, most_images: int) -> Chat:
    """Checked as a chat request's, by the same code."""
    return Chat.parse(json.dumps({"model": model, "messages": messages}).encode(), most_images)


def _check_model(name: str | None, router: Router) -> None:
    if name is not None and name != router.name:
        raise UnknownModel(f"the model {name[:100]!r} does not exist", param="model")


def _check_length(num_tokens: int, most: int, param: str, about: str = "") -> None:
    if num_tokens > most:
        raise ContextTooLong(
            f"This model's maximum context length is {most} tokens. However, the {param} has {about}{num_tokens}."
            if param == "prompt"
            else f"This model's maximum context length is {most} tokens. However, there are {num_tokens}.",
            param=param,
        )
