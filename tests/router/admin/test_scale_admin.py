"""Bodies for operators' routes that can mean two things, or nothing."""

from typing import Any

import pytest

from tests.router.serving import serving
from triptych.models.card import ModelCard

pytestmark = pytest.mark.anyio
KEY = {"authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("path", "body", "message", "param"),
    [
        ("scale", '{"encode": 1, "decode": 1, "encode": 2}', "'encode' stands 2 times in the body", "encode"),
        ("scale", '{"": 1}', "a name in the body is empty", None),
        ("role", '{"worker": "d-0", "role": "p", "worker": "d-1"}', "'worker' stands 2 times in the body", "worker"),
        ("reload", '{"model": "/models/a", "model": "/models/b"}', "'model' stands 2 times in the body", "model"),
    ],
)
async def test_a_name_that_stands_twice_or_is_none_is_refused(
    card: ModelCard, path: str, body: str, message: str, param: str | None
) -> None:
    async with serving(card, api_key="secret") as served:
        response = await served.client.post(f"/admin/{path}", content=body, headers=KEY)
        error: dict[str, Any] = response.json()["error"]
        assert (response.status_code, error["message"], error["param"]) == (400, message, param)
    async with serving(card) as served:
        response = await served.client.post(f"/admin/{path}", content=body)
        assert response.status_code == 403, "who may not ask hears that first"
