"""The edge over HTTP: who gets in, how often, and what every answer carries."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.metrics.test_books import samples
from tests.router.serving import Served, chat_body, serving, tiers, until
from triptych.errors import (
    ClaimExpired,
    ContextTooLong,
    DeadlineExceeded,
    InternalError,
    NoWorker,
    Overloaded,
    TriptychError,
    Unauthorized,
    WorkerLost,
)
from triptych.models.card import ModelCard
from triptych.router.app import build_apps
from triptych.router.edge.auth import Key, digest_of, toml_of
from triptych.router.edge.failures import error_body, error_headers
from triptych.router.edge.limits import Limits

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
CLEAR = "/admin/embeddings/clear"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    write_keys(path, Key("alice", digest_of("a")), Key("root", digest_of("r"), is_admin=True))
    return path


def write_keys(path: Path, *keys: Key) -> None:
    path.write_text("\n".join(map(toml_of, keys)))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def entries(path: Path) -> Sequence[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (bearer("b"), 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "Basic a"}, 401),
        (bearer("a"), 200),
        ({"authorization": "bearer  a"}, 200),
        ({"x-api-key": "a"}, 200),
        ({"x-api-key": "b"}, 401),
    ],
)
async def test_a_key_of_the_file_opens_the_api(
    card: ModelCard, keys: Path, headers: dict[str, str], status: int
) -> None:
    async with serving(card, api_keys_file=str(keys)) as served:
        response = await served.client.get("/v1/models", headers=headers)
        assert response.status_code == status
        if status == 401:
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.headers["x-should-retry"] == "false"
            assert response.json()["error"]["code"] == "invalid_api_key"


async def test_probes_are_open_and_an_empty_file_lets_nobody_in(card: ModelCard, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.touch()
    async with serving(card, api_keys_file=str(path)) as served:
        assert (await served.client.get("/v1/models")).status_code == 401
        for probe in ("/live", "/version", "/metrics"):
            assert (await served.client.get(probe)).status_code == 200


async def test_what_operators_ask_wants_an_operators_key(card: ModelCard, keys: Path) -> None:
    async with serving(card, api_keys_file=str(keys)) as served:
        for method, path, for_root in (("GET", "/v1/cluster", 200), ("POST", "/admin/embeddings/clear", 503)):
            assert (await served.client.request(method, path)).status_code == 401
            refused = await served.client.request(method, path, headers=bearer("a"))
            assert refused.status_code == 403
            assert refused.json()["error"]["type"] == "permission_error"
            assert (await served.client.request(method, path, headers=bearer("r"))).status_code == for_root


async def test_a_key_that_is_taken_out_of_the_file_is_refused_within_moments(card: ModelCard, keys: Path) -> None:
    async with serving(card, api_keys_file=str(keys)) as served:
        keys.write_text("[[broken")
        await asyncio.sleep(1.2)
        assert (await served.client.get("/v1/models", headers=bearer("a"))).status_code == 200
        write_keys(keys, Key("bob", digest_of("b")))
        async with asyncio.timeout(4):
            while (await served.client.get("/v1/models", headers=bearer("a"))).status_code == 200:
                await asyncio.sleep(0.05)
        assert (await served.client.get("/v1/models", headers=bearer("b"))).status_code == 200


async def test_a_limited_key_is_told_what_is_left_and_then_when_to_come_back(card: ModelCard, keys: Path) -> None:
    write_keys(keys, Key("alice", digest_of("a"), Limits(requests_per_minute=2)), Key("root", digest_of("r")))
    async with serving(card, tiers(card, "epd"), api_keys_file=str(keys)) as served:
        served.client.headers.update(bearer("a"))
        for left in ("1", "0"):
            response = await served.chat(max_tokens=2)
            assert response.status_code == 200
            assert response.headers["x-ratelimit-limit-requests"] == "2"
            assert response.headers["x-ratelimit-remaining-requests"] == left
            assert response.headers["x-ratelimit-reset-requests"].endswith("s")
        refused = await served.chat(max_tokens=2)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert refused.headers["x-should-retry"] == "true"
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert (await served.client.get("/v1/models")).status_code == 200
        served.client.headers.update(bearer("r"))
        unlimited = await served.chat(max_tokens=2)
        assert unlimited.status_code == 200
        assert not any(name.startswith("x-ratelimit") for name in unlimited.headers)
        assert 'rejected_requests_total{reason="limit"} 1.0' in served.router.expose_metrics().decode()


async def test_a_slot_comes_back_when_the_client_leaves_amid_the_stream(card: ModelCard, keys: Path) -> None:
    write_keys(keys, Key("alice", digest_of("a"), Limits(max_concurrent=1)))
    async with serving(card, tiers(card, "epd"), api_keys_file=str(keys)) as served:
        served.client.headers.update(bearer("a"))
        served.workers[0].token_pause_seconds = 0.05
        body = chat_body(max_tokens=1000, ignore_eos=True, stream=True)
        async with served.client.stream("POST", CHAT, json=body) as response:
            assert response.status_code == 200
            await anext(response.aiter_bytes())
            assert (await served.chat(max_tokens=1)).status_code == 429
        await until(lambda: served.router.running == 0)
        async with asyncio.timeout(5):
            while (await served.chat(max_tokens=1)).status_code != 200:
                await asyncio.sleep(0.02)


async def test_a_line_is_written_for_each_request_and_holds_nothing_private(
    card: ModelCard, keys: Path, tmp_path: Path
) -> None:
    log = tmp_path / "usage.jsonl"
    async with serving(card, tiers(card, "epd"), api_keys_file=str(keys), usage_log=str(log)) as served:
        served.client.headers.update(bearer("a"))
        answered = await served.chat("a private matter", max_tokens=3, ignore_eos=True)
        streamed = await served.frames("a private matter", max_tokens=4, ignore_eos=True)
        assert (await served.chat(model="other")).status_code == 404
        assert (await served.client.post(CHAT, json={}, headers=bearer("wrong-secret"))).status_code == 401
        assert (await served.client.post(CLEAR, headers=bearer("a"))).status_code == 403
        assert streamed[-1] == "data: [DONE]"
    whole, stream, unknown, stranger, no_operator = entries(log)
    usage = answered.json()["usage"]
    assert whole["request_id"] == answered.headers["x-request-id"]
    assert (whole["tenant"], whole["endpoint"], whole["model"], whole["status"]) == ("alice", CHAT, "tiny_vl", 200)
    assert (whole["prompt_tokens"], whole["completion_tokens"]) == (usage["prompt_tokens"], 3)
    assert whole["error"] is None
    assert whole["seconds"] > 0
    assert (stream["completion_tokens"], stream["status"]) == (4, 200)
    assert (unknown["status"], unknown["error"], unknown["completion_tokens"]) == (404, "UnknownModel", 0)
    assert (stranger["status"], stranger["tenant"]) == (401, "")
    assert (no_operator["status"], no_operator["tenant"], no_operator["endpoint"]) == (403, "alice", CLEAR)
    assert not any(word in log.read_text() for word in ("private", "secret"))


async def test_origins_that_were_named_may_ask_by_every_way_and_read_errors(card: ModelCard) -> None:
    origin = "https://app.example"
    async with serving(card, cors_origins=(origin,), api_key="k") as served:
        asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
        for path in (CHAT, "/v1/messages", "/v1/models"):
            preflight = await served.client.options(path, headers={"origin": origin, **asks})
            assert preflight.status_code == 200
            assert preflight.headers["access-control-allow-origin"] == origin
            assert "authorization" in preflight.headers["access-control-allow-headers"]
            assert preflight.headers["x-request-id"]
            error = await served.client.post(path, headers={"origin": origin}, json={})
            assert error.status_code in (401, 405)
            assert error.headers["access-control-allow-origin"] == origin
            assert "x-request-id" in error.headers["access-control-expose-headers"].lower()
        stranger = await served.client.options(CHAT, headers={"origin": "https://evil.example", **asks})
        assert stranger.status_code == 400
        assert stranger.json()["error"]["code"] == "cors_not_allowed"
        assert "access-control-allow-origin" not in stranger.headers


async def test_without_origins_no_answer_speaks_of_them(card: ModelCard) -> None:
    async with serving(card) as served:
        response = await served.client.get("/v1/models", headers={"origin": "https://app.example"})
        assert not any(name.startswith("access-control") for name in response.headers)


async def test_with_an_admin_port_operators_paths_are_there_alone(card: ModelCard) -> None:
    async with serving(card, admin_port=1, api_key="k") as served:
        for path in ("/metrics", "/v1/cluster", "/admin/embeddings/clear"):
            response = await served.client.get(path, headers=bearer("k"))
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "not_found"
            assert response.headers["x-request-id"]
        admin = build_apps(served.router).admin
        assert admin is not None
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=admin), base_url="http://admin") as client:
            assert (await client.get("/metrics")).status_code == 200
            assert (await client.get("/live")).status_code == 200
            assert (await client.get("/v1/cluster")).status_code == 401
            assert (await client.get("/v1/cluster", headers=bearer("k"))).status_code == 200
            assert (await client.get("/v1/models", headers=bearer("k"))).status_code == 404
            assert (await client.post(CHAT, headers=bearer("k"))).status_code == 404
            assert (await client.post("/admin/embeddings/clear")).status_code == 401
            assert (await client.post("/admin/embeddings/clear", headers=bearer("k"))).status_code == 503


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ContextTooLong("x"), {"x-should-retry": "false"}),
        (Unauthorized("x"), {"x-should-retry": "false", "www-authenticate": "Bearer"}),
        (NoWorker("x"), {"x-should-retry": "true", "retry-after": "3"}),
        (Overloaded("x"), {"x-should-retry": "true", "retry-after": "3"}),
        (DeadlineExceeded("x"), {"x-should-retry": "false"}),
        (InternalError("x"), {"x-should-retry": "false"}),
    ],
)
def test_clients_are_told_whether_and_when_to_try_again(error: TriptychError, told: dict[str, str]) -> None:
    assert error_headers(error, room_seconds=2.3) == told


def test_what_an_error_knows_of_the_time_counts_within_bounds() -> None:
    error = Overloaded("x")
    for known, told in ((0.0, "1"), (7.2, "8"), (9999.0, "60")):
        error.retry_after_seconds = known
        assert error_headers(error)["retry-after"] == told


@pytest.mark.parametrize("kind", [InternalError, WorkerLost, ClaimExpired])
def test_nothing_of_the_clusters_inside_is_told(kind: type[TriptychError]) -> None:
    told = json.dumps(error_body(kind("10.0.0.7:5000 has no /dev/shm/x")))
    assert "10.0.0" not in told
    assert "shm" not in told


async def test_whom_a_crowd_keeps_out_is_a_miss_where_he_would_have_got_in(card: ModelCard, keys: Path) -> None:
    async with serving(card, api_keys_file=str(keys), max_connections=4) as served:
        port = httpx.URL(served.base_url).port
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for key, told in (("a", ""), ("wrong", ""), ("a", "batch"), ("a", "?")):
            headers = {**bearer(key), "x-triptych-slo": told}
            response = await served.client.post(CHAT, json=chat_body(), headers=headers)
            assert response.json()["error"]["code"] == "too_many_connections"
        found = samples(served.router.expose_metrics())
        for _, writer in idle:
            writer.close()
    counted = {name: found[f"triptych:slo_requests_total{{slo={name}}}"] for name in ("interactive", "batch")}
    assert counted == {"interactive": 1, "batch": 1}
    assert found["triptych:request_slo_violations_total{limit=failed,slo=batch}"] == 1
    assert found["triptych:rejected_requests_total{reason=connections}"] == 4


async def test_every_path_without_a_name_in_it_is_counted_by_itself(card: ModelCard) -> None:
    async with serving(card) as served:
        described = (await served.client.get("/openapi.json")).json()["paths"]
        paths = [path for path in described if "{" not in path]
        assert "/admin/reload" in paths
        for path in paths:
            method = "get" if "get" in described[path] else "post"
            async with served.client.stream(method, path):
                pass
        found = samples(served.router.expose_metrics())
    told = {name.partition("endpoint=")[2].partition(",")[0] for name in found if ":requests_total{" in name}
    assert set(paths) - told == set()


async def test_a_usage_log_that_is_rotated_goes_on_in_a_new_file(card: ModelCard, tmp_path: Path) -> None:
    log = tmp_path / "usage.jsonl"

    async def ask(served: Served) -> None:
        await served.chat(model="other")

    async with serving(card, usage_log=str(log)) as served:
        await ask(served)
        await until(lambda: bool(log.read_text()))
        os.rename(log, tmp_path / "usage.1")
        await ask(served)
    assert len(entries(log)) == 1
