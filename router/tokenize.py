"""POST /tokenize: ids of a text, for load generators that cut prompts to length."""

import asyncio
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.requests import Request as HTTPRequest

from triptych.router.body import read_body
from triptych.router.router import Router
from triptych.router.schema import invalid_request


class TokenizeRequest(BaseModel):
    """Other keys are ignored; our prompts get no tokens added by the tokenizer itself."""

    prompt: str


async def tokenize(http: HTTPRequest, router: Router) -> dict[str, Any]:
    limits = router.settings.router
    with router.budget.holding() as holding:
        body = await read_body(http, limits.max_body_bytes, limits.stage_timeout_seconds, holding)
        try:
            request = TokenizeRequest.model_validate_json(body)
        except ValidationError as error:
            raise invalid_request(error) from None
        ids = await asyncio.to_thread(router.prompts.encode_text, request.prompt)
    return {"tokens": ids, "count": len(ids), "max_model_len": router.card.max_model_len}
