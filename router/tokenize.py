"""POST /tokenize: ids of a text, for load generators that cut prompts to length."""

import asyncio
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.requests import Request as HTTPRequest

from triptych.errors import ContextTooLong
from triptych.router.body import read_body
from triptych.router.router import Router
from triptych.router.schema import invalid_request


class TokenizeRequest(BaseModel):
    """Other keys are ignored; our prompts get no tokens added by the tokenizer itself."""

    prompt: str


async def tokenize(http: HTTPRequest, router: Router) -> dict[str, Any]:
    """Raises InvalidRequest, and ContextTooLong for what no prompt could hold."""
    limits, run = router.settings.router, asyncio.get_running_loop().run_in_executor
    with router.budget.holding() as holding:
        body = await read_body(http, limits.max_body_bytes, limits.stage_timeout_seconds, holding)
        prompt = await run(router.threads.texts, _prompt, body.data)
        del body
        most = router.fleet.max_model_len(router.card.max_model_len)
        _check_length(router.prompts.fewest_tokens(len(prompt)), most, "at least ")  # before seconds are spent
        ids = await run(router.threads.texts, router.prompts.encode_text, prompt)
        _check_length(len(ids), most)  # the answer is no longer than a prompt either
    return {"tokens": ids, "count": len(ids), "max_model_len": most}


def _prompt(body: bytes) -> str:
    try:
        return TokenizeRequest.model_validate_json(body).prompt
    except ValidationError as error:
        raise invalid_request(error) from None


def _check_length(num_tokens: int, most: int, about: str = "") -> None:
    if num_tokens > most:
        raise ContextTooLong(
            f"This model's maximum context length is {most} tokens. However, the prompt has {about}{num_tokens}.",
            param="prompt",
        )
