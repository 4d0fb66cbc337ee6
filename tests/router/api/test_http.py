"""The HTTP surface without a single worker: every answer has a shape, an id, and the right status."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.router.serving import chat_body, image, picture, serving, tiers, until
from triptych.models.card import ModelCard

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The nested error; checks its shape, and that the answer has an id."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    assert response.headers["x-request-id"]
    error: dict[str, Any] = body["error"]
    return error


async def test_probes_tell_the_process_from_the_cluster(card: ModelCard) -> None:
    async with serving(card) as served:
        assert (await served.client.get("/live")).status_code == 200
        assert (await served.client.get("/version")).json()["version"]
        health = await served.client.get("/health")
        assert health.status_code == 503
        assert health.json()["roles"] == {"encode": False, "prefill": False, "decode": False}


async def test_health_is_good_when_every_role_has_a_worker_and_bad_again_when_one_dies(card: ModelCard) -> None:
    encoder, *rest = tiers(card, "e", "p", "d")
    async with serving(card, [encoder, *rest]) as served:
        assert (await served.client.get("/health")).status_code == 200
        await encoder.kill()
        await until(lambda: not served.router.fleet.is_ready(next(iter(encoder.roles))))
        assert (await served.client.get("/health")).status_code == 503
        await encoder.start()


async def test_models_are_listed_and_retrieved(card: ModelCard) -> None:
    async with serving(card) as served:
        (entry,) = (await served.client.get("/v1/models")).json()["data"]
        assert entry["id"] == entry["root"] == "tiny_vl"
        assert entry["max_model_len"] == card.max_model_len
        assert (await served.client.get("/v1/models/tiny_vl")).json() == entry
        response = await served.client.get("/v1/models/some/other")
        assert response.status_code == 404
        assert error_of(response)["code"] == "model_not_found"


async def test_metrics_answer_get_and_head(card: ModelCard) -> None:
    async with serving(card) as served:
        assert "triptych:requests_total" in (await served.client.get("/metrics")).text
        assert (await served.client.head("/metrics")).status_code == 200


async def test_the_cluster_is_told_in_json(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd")) as served:
        told = (await served.client.get("/v1/cluster")).json()
        assert told["workers"][0]["worker_id"] == "epd-0"
        assert told["workers"][0]["state"] == "ready"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/openapi.yaml", 404),
    ],
)
async def test_unknown_routes_and_methods_have_nested_errors(
    card: ModelCard, method: str, path: str, status: int
) -> None:
    async with serving(card) as served:
        response = await served.client.request(method, path)
        assert response.status_code == status
        assert error_of(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"17", b'"x"', b"\xff\xfe\x00", b'{"model": 1}'])
async def test_a_body_that_is_no_request_is_a_400(card: ModelCard, body: bytes) -> None:
    async with serving(card) as served:
        response = await served.client.post(CHAT, content=body)
        assert response.status_code == 400
        assert error_of(response)["type"] == "invalid_request_error"


async def test_the_longest_context_is_what_workers_take_and_not_what_the_model_could(card: ModelCard) -> None:
    workers = tiers(card, "e", "p", "d")
    workers[-1].max_model_len = 100
    async with serving(card, workers) as served:
        (entry,) = (await served.client.get("/v1/models")).json()["data"]
        tokens = (await served.client.post("/tokenize", json={"prompt": "hello"})).json()
        assert entry["max_model_len"] == tokens["max_model_len"] == 100
        response = await served.chat("hello", max_tokens=100)
        assert response.status_code == 400
        assert error_of(response)["message"].startswith("This model's maximum context length is 100 tokens. However, ")


@pytest.mark.parametrize("stream", [True, False])
async def test_errors_are_statuses_in_streams_as_well(card: ModelCard, stream: bool) -> None:
    async with serving(card) as served:
        response = await served.chat(model="other", stream=stream)
        assert response.status_code == 404
        assert error_of(response)["param"] == "model"
        for words in (1700, 20_000):  # the second is too long whatever its tokens are
            response = await served.chat("wxyz " * words * 2, stream=stream)
            assert response.status_code == 400
            assert error_of(response)["code"] == "context_length_exceeded"
            beginning = f"This model's maximum context length is {card.max_model_len} tokens. However, "
            assert error_of(response)["message"].startswith(beginning)
        response = await served.chat("hello", stream=stream)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert error_of(response)["code"] == "service_unavailable"


async def test_a_bad_image_is_named_by_index_and_path(card: ModelCard) -> None:
    async with serving(card) as served:
        response = await served.chat([picture(), {"type": "text", "text": "?"}, image(b"<html>")])
        assert response.status_code == 400
        error = error_of(response)
        assert error["message"].startswith("image 1: ")
        assert error["param"] == "messages[0].content[2].image_url.url"
        assert error["code"] == "unsupported_image_format"


async def test_a_private_url_is_refused_without_a_word_about_it(card: ModelCard) -> None:
    async with serving(card) as served:
        part = {"type": "image_url", "image_url": {"url": f"{served.base_url}/v1/models"}}
        response = await served.chat([part], model="tiny_vl")
        assert response.status_code == 400
        assert error_of(response)["code"] == "media_url_not_allowed"
        assert "127" not in error_of(response)["message"]


async def test_a_declared_length_over_the_limit_is_refused_unread(card: ModelCard) -> None:
    async with serving(card, max_body_bytes=1000) as served:
        reader, writer = await asyncio.open_connection(*_address(served.base_url))
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(1000), 5)
        assert answer.startswith(b"HTTP/1.1 413")
        assert b'"code":"request_too_large"' in answer
        writer.close()


async def test_an_undeclared_length_over_the_limit_is_refused_while_it_comes(card: ModelCard) -> None:
    async def pieces() -> Any:
        for _ in range(1000):
            yield b" " * 1000

    async with serving(card, max_body_bytes=10_000) as served:
        response = await served.client.post(CHAT, content=pieces())
        assert response.status_code == 413
        assert error_of(response)["code"] == "request_too_large"
        assert served.router.budget.held_bytes == 0


async def test_a_body_that_does_not_fit_the_budget_is_asked_to_come_later(card: ModelCard) -> None:
    async with serving(card, media_budget_bytes=1000) as served:
        response = await served.chat("x" * 2000)
        assert response.status_code == 429
        assert response.headers["retry-after"] == "1"
        assert error_of(response)["type"] == "rate_limit_error"


async def test_a_client_that_stops_sending_is_let_go(card: ModelCard) -> None:
    async with serving(card, stage_timeout_seconds=0.2) as served:
        reader, writer = await asyncio.open_connection(*_address(served.base_url))
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nabc".encode())
        answer = await asyncio.wait_for(reader.read(1000), 5)
        assert answer.startswith(b"HTTP/1.1 400")
        writer.close()


@pytest.mark.parametrize(
    ("told", "kept"),
    [("req-123_A.b", True), ("", False), ("x" * 200, False), ("a b", False), ("<script>", False)],
)
async def test_a_sane_request_id_is_echoed_and_any_other_replaced(card: ModelCard, told: str, kept: bool) -> None:
    async with serving(card) as served:
        for path in ("/live", "/nowhere"):
            answered = (await served.client.get(path, headers={"x-request-id": told})).headers["x-request-id"]
            assert (answered == told) == kept
            assert answered


async def test_a_key_guards_the_api_and_not_the_probes(card: ModelCard) -> None:
    async with serving(card, api_key="secret") as served:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}):
            response = await served.client.post(CHAT, json=chat_body(), headers=headers)
            assert response.status_code == 401
            assert error_of(response)["code"] == "invalid_api_key"
        response = await served.client.post(CHAT, json=chat_body(), headers={"authorization": "Bearer secret"})
        assert response.status_code == 503
        assert (await served.client.get("/live")).status_code == 200
        assert (await served.client.get("/metrics")).status_code == 200


async def test_text_is_tokenized_as_plain_text(card: ModelCard) -> None:
    async with serving(card) as served:
        response = await served.client.post("/tokenize", json={"model": "tiny_vl", "prompt": "hi <|im_end|>"})
        body = response.json()
        assert body["count"] == len(body["tokens"]) > 5
        assert not set(body["tokens"]) & served.router.prompts.special_ids
        assert (await served.client.post("/tokenize", json={})).status_code == 400
        assert error_of(await served.client.post("/tokenize", json={}))["param"] == "prompt"


async def test_a_bug_of_ours_ends_one_request_with_a_500_and_tells_nothing(
    card: ModelCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(card, tiers(card, "epd")) as served:

        def broken(*_: Any) -> None:
            raise ZeroDivisionError("secret detail")

        monkeypatch.setattr(served.router.prompts, "runs", broken)
        response = await served.chat()
        assert response.status_code == 500
        assert "secret" not in json.dumps(error_of(response))
        monkeypatch.undo()
        assert (await served.chat(max_tokens=2)).status_code == 200


def _address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)
