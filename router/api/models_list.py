"""GET /v1/models: the one model that is served, as OpenAI tells it, with what load generators look for."""

import time
from typing import Any

from fastapi import FastAPI

from triptych.errors import UnknownModel
from triptych.router.router import Router


def add_models(app: FastAPI, router: Router) -> None:
    created = int(time.time())

    def card() -> dict[str, Any]:
        return {
            "id": router.name,
            "object": "model",
            "created": created,
            "owned_by": "triptych",
            "root": router.name,
            "parent": None,
            "max_model_len": router.serving.max_model_len,
        }

    @app.get("/v1/models", response_model=None)
    async def models() -> dict[str, Any]:
        """The model that is served"""
        return {"object": "list", "data": [card()]}

    @app.get("/v1/models/{model_id:path}", response_model=None)
    async def model(model_id: str) -> dict[str, Any]:
        """One model by its name"""
        if model_id != router.name:
            raise UnknownModel(f"the model {model_id[:100]!r} does not exist", param="model")
        return card()
