"""Fetching images: what is fetched, and above all what is not."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.router.origin import Visit, always, origin, response
from triptych.config import RouterSettings
from triptych.errors import InvalidMedia, MediaTooLarge
from triptych.router.media.fetch import USER_AGENT, MediaFetcher

pytestmark = pytest.mark.anyio
IMAGE = b"\x89PNG and so on"


@asynccontextmanager
async def fetcher(**settings: Any) -> AsyncIterator[MediaFetcher]:
    opened: dict[str, Any] = {
        "allow_media_cidrs": ("127.0.0.0/8",),
        "allow_media_ports": (),
        "fetch_timeout_seconds": 2.0,
    }
    made = MediaFetcher(RouterSettings(**(opened | settings)))
    try:
        yield made
    finally:
        await made.close()


async def refusal(url: str, **settings: Any) -> InvalidMedia:
    async with fetcher(**settings) as fetch:
        with pytest.raises(InvalidMedia) as caught:
            await fetch.fetch(url)
    return caught.value


async def test_an_image_is_fetched_with_our_headers_alone() -> None:
    async with origin(always(response(IMAGE))) as server, fetcher() as fetch:
        assert await fetch.fetch(server.url("/path?q=1#fragment")) == IMAGE
    (visit,) = server.visits
    assert visit.target == "/path?q=1"
    assert visit.headers == {
        "host": f"127.0.0.1:{server.port}",
        "user-agent": USER_AGENT.decode(),
        "accept": "image/*",
        "accept-encoding": "identity",
    }


async def test_the_host_header_keeps_the_name_while_the_address_is_dialled() -> None:
    async with origin(always(response(IMAGE)), host="localhost") as server, fetcher() as fetch:
        assert await fetch.fetch(server.url()) == IMAGE
    assert server.visits[0].headers["host"] == f"localhost:{server.port}"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "127。0。0。1",
    ],
)
async def test_no_spelling_of_a_private_address_is_dialled_by_default(host: str) -> None:
    async with origin(always(response(IMAGE)), host=host) as server:
        error = await refusal(server.url(), allow_media_cidrs=())
    assert error.media_code in ("media_url_not_allowed", "image_fetch_failed", "invalid_image_url")
    assert server.connections == 0


async def test_a_closed_and_an_open_port_inside_read_the_same() -> None:
    async with origin(always(response(IMAGE))) as server:
        there = await refusal(server.url(), allow_media_cidrs=())
    nothing = await refusal(f"http://127.0.0.1:{_free_port()}/", allow_media_cidrs=())
    assert (there.message, there.media_code) == (nothing.message, nothing.media_code)
    assert "127.0.0.1" not in there.message


async def test_a_name_with_one_private_address_among_its_public_ones_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in ("93.184.216.34", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: entries)
    error = await refusal("http://mixed.example/a.png", allow_media_cidrs=())
    assert error.media_code == "media_url_not_allowed"


async def test_a_name_is_resolved_once_and_that_answer_is_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["127.0.0.1", "10.0.0.1"])  # the second answer is the rebinding attack

    def resolve(host: str, port: int, **hints: Any) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    async with origin(always(response(IMAGE)), host="rebind.example") as server, fetcher() as fetch:
        monkeypatch.setattr(socket, "getaddrinfo", _only_for("rebind.example", resolve))
        assert await fetch.fetch(server.url()) == IMAGE
    assert next(answers) == "10.0.0.1"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("malformed", "invalid_image_url"),
        ("/9j/4AAQ", "invalid_image_url"),
        ("file:///etc/passwd", "media_url_not_allowed"),
        ("ftp://example.com/a.png", "invalid_image_url"),
        ("http://", "invalid_image_url"),
        ("http://[::1", "invalid_image_url"),
        ("gopher://127.0.0.1:70/", "invalid_image_url"),
        ("http://user:secret@127.0.0.1/a.png", "media_url_not_allowed"),
        ("http://127.0.0.1/" + "a" * 9000, "media_url_not_allowed"),
        ("http://xn--a/", "invalid_image_url"),
        ("https://xn--/a.png", "invalid_image_url"),
        ("http://xn--0.com/", "invalid_image_url"),
        ("http://.a/", "image_fetch_failed"),
        ("https://a..b/", "image_fetch_failed"),
        ("http://" + "a" * 70 + ".com/", "image_fetch_failed"),
        ("http://%ff/", "image_fetch_failed"),
        ("http://a/\ud800", "invalid_image_url"),
        ("http://127.0.0.1:99999/", "invalid_image_url"),
        ("http://127.0.0.1:0/", "invalid_image_url"),
        ("http://no-such-host.invalid/a.png", "image_fetch_failed"),
    ],
)
async def test_other_urls_are_refused(url: str, code: str) -> None:
    error = await refusal(url)
    assert error.media_code == code
    assert error.http_status == 400


async def test_ports_of_public_addresses_outside_the_list_are_not_dialled() -> None:
    error = await refusal("http://8.8.8.8:8080/a.png", allow_media_ports=(80, 443))
    assert error.media_code == "media_url_not_allowed"


async def test_an_opened_network_is_fetched_from_at_any_port() -> None:
    async with origin(always(response(IMAGE))) as server, fetcher(allow_media_ports=(80, 443)) as fetch:
        assert await fetch.fetch(server.url()) == IMAGE


async def test_redirects_are_followed_up_to_the_limit() -> None:
    async def answer(visit: Visit, writer: asyncio.StreamWriter) -> None:
        step = int(visit.target[1:])
        writer.write(response(IMAGE) if step == 0 else response(b"", "302 Found", location=f"/{step - 1}"))

    async with origin(answer) as server, fetcher() as fetch:
        assert await fetch.fetch(server.url("/3")) == IMAGE
        with pytest.raises(InvalidMedia, match="more than 3 redirects"):
            await fetch.fetch(server.url("/4"))


async def test_every_hop_is_checked_like_the_first() -> None:
    async with origin(always(response(IMAGE))) as inner:
        away = inner.url().replace("127.0.0.1", "127.0.0.2")
        async with origin(always(response(b"", "302 Found", location=away))) as outer:
            error = await refusal(outer.url(), allow_media_cidrs=("127.0.0.1/32",))
    assert error.media_code == "media_url_not_allowed"
    assert inner.connections == 0


@pytest.mark.parametrize("location", ["file:///etc/passwd", "//[", "http://user:x@127.0.0.1/", "http://xn--a/"])
async def test_a_redirect_elsewhere_is_refused(location: str) -> None:
    async with origin(always(response(b"", "301 Moved", location=location))) as server:
        error = await refusal(server.url())
    assert error.http_status == 400


@pytest.mark.parametrize("status", ["404 Not Found", "403 Forbidden", "500 Oops", "204 No Content", "304 Not Modified"])
async def test_any_other_status_is_the_clients_error(status: str) -> None:
    async with origin(always(response(b"", status))) as server:
        error = await refusal(server.url())
    assert error.media_code == "image_fetch_failed"
    assert status[:3] in error.message


async def test_a_declared_length_over_the_cap_ends_the_fetch_at_once() -> None:
    async with origin(always(response(b"", content_length="1001"))) as server, fetcher(max_image_bytes=1000) as fetch:
        with pytest.raises(MediaTooLarge):
            await fetch.fetch(server.url())


async def test_an_undeclared_length_over_the_cap_ends_the_fetch_while_it_streams() -> None:
    sent = 0

    async def answer(visit: Visit, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        while sent < 1 << 26:
            writer.write(bytes(1 << 16))
            await writer.drain()
            sent += 1 << 16

    async with origin(answer) as server, fetcher(max_image_bytes=1 << 20) as fetch:
        with pytest.raises(MediaTooLarge):
            await fetch.fetch(server.url())
    assert sent < 1 << 26


async def test_a_slow_origin_runs_into_the_total_deadline() -> None:
    async def answer(visit: Visit, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(100):  # each byte in time, all of them not
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)

    began = time.monotonic()
    async with origin(answer) as server:
        error = await refusal(server.url(), fetch_timeout_seconds=0.3)
    assert error.media_code == "image_fetch_timeout"
    assert time.monotonic() - began < 2


async def test_a_broken_connection_is_tried_once_more() -> None:
    attempts = 0

    async def answer(visit: Visit, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 2:
            writer.write(response(IMAGE))

    async with origin(answer) as server, fetcher() as fetch:
        assert await fetch.fetch(server.url()) == IMAGE
        attempts = 2
        with pytest.raises(InvalidMedia, match="connection failed"):
            await fetch.fetch(server.url())
    assert attempts == 4


async def test_an_unasked_compression_is_refused() -> None:
    async with origin(always(response(IMAGE, content_encoding="gzip"))) as server:
        assert (await refusal(server.url())).media_code == "image_fetch_failed"


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with origin(always(response(b"", "500 Proxy"))) as proxy, origin(always(response(IMAGE))) as server:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url("/"))
        async with fetcher() as fetch:
            assert await fetch.fetch(server.url()) == IMAGE
    assert proxy.connections == 0


async def test_a_cookie_is_not_brought_back() -> None:
    async with origin(always(response(IMAGE, set_cookie="a=b"))) as server, fetcher() as fetch:
        await fetch.fetch(server.url())
        await fetch.fetch(server.url())
    assert all("cookie" not in visit.headers for visit in server.visits)
    assert server.connections == 2


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _only_for(name: str, resolve: Any) -> Any:
    original = socket.getaddrinfo

    def chosen(host: Any, port: Any, *args: Any, **hints: Any) -> Any:
        return resolve(host, port) if host == name else original(host, port, *args, **hints)

    return chosen
