"""What all endpoints share: content types, other methods, probes, and what is not served."""

from typing import Any

import pytest

from tests.router.api.test_http import error_of
from tests.router.serving import chat_body, serving, tiers
from triptych.errors import InvalidRequest
from triptych.journey import Role
from triptych.models.card import ModelCard
from triptych.router.api.described import POSTS
from triptych.router.api.posts import Renamed

pytestmark = pytest.mark.anyio
PATHS = [endpoint.path for endpoint in POSTS]
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "text/plain; charset=utf-8", "multipart/form-data"]
)
async def test_a_body_that_says_it_is_no_json_is_refused(card: ModelCard, kind: str) -> None:
    async with serving(card) as served:
        for path in PATHS:
            response = await served.client.post(path, content=b"{}", headers={"content-type": kind})
            assert response.status_code == 415
            if not path.startswith("/v1/messages"):
                assert error_of(response)["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "kind", [None, "application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"]
)
async def test_a_body_that_says_json_or_nothing_is_read(card: ModelCard, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    async with serving(card, tiers(card, "epd")) as served:
        response = await served.client.post("/tokenize", content=b'{"prompt": "x"}', headers=headers)
        assert response.status_code == 200


async def test_every_endpoint_refuses_other_methods_and_bodies_that_are_none(card: ModelCard) -> None:
    async with serving(card) as served:
        for path in PATHS:
            assert (await served.client.get(path)).status_code == 405
            for body in (b"", b"{", b"[]", b"null", b'"x"', b"\xff"):
                response = await served.client.post(path, content=body)
                assert response.status_code == 400, (path, body)
                assert response.headers["x-request-id"]


async def test_readiness_names_the_roles_that_are_missing(card: ModelCard) -> None:
    async with serving(card, tiers(card, "e", "d")) as served:
        response = await served.client.get("/ready")
        assert response.status_code == 503
        assert response.json()["missing"] == [str(Role.PREFILL)]
    async with serving(card, tiers(card, "e", "p", "d")) as served:
        assert (await served.client.get("/ready")).json() == {"status": "ready", "missing": []}


async def test_embeddings_are_not_served_and_it_is_said(card: ModelCard) -> None:
    async with serving(card) as served:
        response = await served.client.post("/v1/embeddings", json={"model": "tiny_vl", "input": "x"})
        assert response.status_code == 404
        assert "no embedding model" in error_of(response)["message"]


async def test_a_field_is_called_what_the_endpoint_calls_it() -> None:
    async def app(*_: Any) -> None:
        raise InvalidRequest("too long", param="messages")

    with pytest.raises(InvalidRequest) as caught:
        await Renamed(app, {"messages": "input"})({}, app, app)  # type: ignore[arg-type]
    assert caught.value.param == "input"


async def test_an_answer_is_the_same_by_every_api(card: ModelCard) -> None:
    async with serving(card, tiers(card, "e", "p", "d")) as served:
        chat = (await served.chat("hello", max_tokens=4)).json()
        responses = await served.client.post(
            "/v1/responses", json={"model": "tiny_vl", "input": "hello", "max_output_tokens": 4}
        )
        messages = await served.client.post("/v1/messages", json=chat_body("hello", max_tokens=4))
        text = chat["choices"][0]["message"]["content"]
        assert responses.json()["output"][0]["content"][0]["text"] == text
        assert messages.json()["content"][0]["text"] == text
