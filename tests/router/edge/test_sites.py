"""Servers without keys, which a browser on the same machine reaches for every page that it shows."""

from typing import Any

import httpx
import pytest

from tests.router.serving import Served, chat_body, serving, tiers
from triptych.config import RouterSettings
from triptych.errors import HostNotAllowed, OriginNotAllowed, RequestError
from triptych.models.card import ModelCard
from triptych.router.app import build_apps
from triptych.router.edge.sites import OF_ADMIN_PORT, Sites

pytestmark = pytest.mark.anyio
EVIL = "http://evil.example"


def refusal(method: str = "POST", admin: bool = False, settings: Any = None, **told: str) -> type[RequestError] | None:
    """What a request with these headers gets; None: it may pass."""
    headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in told.items()]
    scope = {"type": "http", "method": method, "headers": headers, "state": {OF_ADMIN_PORT: admin}}
    try:
        Sites(RouterSettings(**(settings or {}))).check(scope)
    except (HostNotAllowed, OriginNotAllowed) as error:
        return type(error)
    return None


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:8000", "127.0.0.1", "localhost:8000", "LOCALHOST", "localhost.:8000", "app.localhost:8000"),
        *("[::1]:8000", "[::1]", "10.1.2.3:8000", "triptych:8000", "backend", ""),
    ],
)
def test_names_that_no_stranger_has_made_are_known(host: str) -> None:
    assert refusal("GET", host=host) is None
    assert refusal("POST", host=host) is None
    assert refusal("POST") is None  # HTTP/1.0


@pytest.mark.parametrize(
    "host", ["evil.example:8000", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_a_name_that_leads_here_is_refused_where_nobody_else_comes_to(host: str) -> None:
    for method in ("GET", "HEAD", "POST"):
        assert refusal(method, host=host, origin=f"http://{host}") is HostNotAllowed
    assert refusal(host=host, settings={"host": "::1"}) is HostNotAllowed
    assert refusal(host=host, settings={"host": "localhost"}) is HostNotAllowed
    assert refusal(host=host, settings={"host": "0.0.0.0"}) is None  # which has names that we do not know
    assert refusal(host=host, settings={"host": "0.0.0.0"}, admin=True) is HostNotAllowed
    assert refusal(host=host, settings={"admin_host": "0.0.0.0"}, admin=True) is None
    for allowed in (("*",), ("other.example", host.partition(":")[0].upper())):
        assert refusal(host=host, settings={"allowed_hosts": allowed}) is None


def test_pages_of_other_sites_change_nothing() -> None:
    here = {"host": "127.0.0.1:8000"}
    for told in (
        {"origin": EVIL},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:3000"},
        {"origin": EVIL, "sec_fetch_site": "cross-site"},
        {"origin": "http://127.0.0.1:3000", "sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site"},
    ):
        for settings in ({}, {"host": "0.0.0.0"}, {"cors_origins": ("https://other.example",)}):
            assert refusal(**here, **told, settings=settings) is OriginNotAllowed, told
        assert refusal("GET", **here, **told) is None  # which nobody of theirs can read
        assert refusal("OPTIONS", **here, **told) is None  # CORS answers that
        assert refusal(**here, **told, settings={"cors_origins": ("*",)}) is None


def test_its_own_page_and_origins_that_were_named_may_ask() -> None:
    assert refusal(host="127.0.0.1:8000", origin="http://127.0.0.1:8000", sec_fetch_site="same-origin") is None
    assert refusal(host="LocalHost:8000", origin="http://localhost:8000") is None
    assert refusal(host="10.0.0.2:8000", origin="http://10.0.0.2:8000", settings={"host": "0.0.0.0"}) is None
    # A proxy with TLS that names us by our own address: the browser knows better than we do.
    assert refusal(host="127.0.0.1:8000", origin="https://ai.example", sec_fetch_site="same-origin") is None
    assert refusal(host="127.0.0.1:8000", origin="chrome-extension://abc", sec_fetch_site="none") is None
    named = {"cors_origins": ("https://app.example",)}
    assert (
        refusal(host="127.0.0.1:8000", origin="https://app.example", sec_fetch_site="cross-site", settings=named)
        is None
    )


async def answer(served: Served, path: str, key: str = "", **headers: str) -> httpx.Response:
    """To a question as a page sends it without asking whether it may: of no type that a browser asks about before."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    headers |= {"authorization": f"Bearer {key}"} if key else {}
    content = httpx.Request("POST", served.base_url, json=chat_body(max_tokens=1)).content
    return await served.client.post(path, content=content, headers=headers)


async def test_a_question_of_another_sites_page_is_refused_and_told_which_setting_lets_it(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd")) as served:
        for path in ("/v1/chat/completions", "/v1/messages", "/tokenize", "/admin/embeddings/clear"):
            refused = await answer(served, path, origin=EVIL, sec_fetch_site="cross-site")
            assert refused.status_code == 403
            assert "router.cors_origins" in refused.text
        error = (await answer(served, "/v1/chat/completions", origin=EVIL)).json()["error"]
        assert (error["type"], error["code"]) == ("permission_error", "origin_not_allowed")
        assert (await answer(served, "/v1/chat/completions")).status_code == 200
        assert (await answer(served, "/v1/chat/completions", origin=served.base_url)).status_code == 200
        for path in ("/", "/v1/models", "/v1/cluster", "/v1/cluster/live", "/metrics"):
            refused = await served.client.get(path, headers={"host": "evil.example:8000"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "host_not_allowed")
            assert "router.allowed_hosts" in refused.text
        told = served.router.expose_metrics().decode()
    assert 'triptych:rejected_requests_total{reason="site"} 10.0' in told


async def test_a_key_is_enough_whatever_page_shows_it_and_origins_that_were_named_need_none(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd"), api_key="k") as served:
        asked = await answer(served, "/v1/chat/completions", "k", origin=EVIL, host="ai.example")
        assert asked.status_code == 200
    async with serving(card, tiers(card, "epd"), cors_origins=("https://app.example",)) as served:
        asked = await answer(served, "/v1/chat/completions", origin="https://app.example", sec_fetch_site="cross-site")
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, "https://app.example")
        assert (await answer(served, "/v1/chat/completions", origin=EVIL)).status_code == 403


async def test_operators_without_keys_are_asked_by_no_page_either(card: ModelCard) -> None:
    async with serving(card, admin_port=1, host="0.0.0.0") as served:
        admin = build_apps(served.router).admin
        assert admin is not None
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=admin), base_url="http://127.0.0.1:1") as client:
            assert (await client.get("/v1/cluster")).status_code == 200
            assert (await client.get("/v1/cluster", headers={"host": "evil.example"})).status_code == 403
            assert (await client.post("/admin/embeddings/clear", headers={"origin": EVIL})).status_code == 403
