"""One fetch for many: at the same moment, from what is kept, within limits, and by the operator's proxy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.router.origin import Answer, Visit, always, origin, response
from tests.router.serving import until
from triptych.config import RouterSettings
from triptych.errors import ConfigError, InvalidMedia, MediaTooLarge, Overloaded
from triptych.metrics import RouterMetrics
from triptych.router.edge.budget import ByteBudget
from triptych.router.media.fetch import MediaFetcher

pytestmark = pytest.mark.anyio
IMAGE = b"\x89PNG and so on"


@asynccontextmanager
async def fetcher(
    budget: ByteBudget | None = None, metrics: RouterMetrics | None = None, **settings: Any
) -> AsyncIterator[MediaFetcher]:
    opened: dict[str, Any] = {"allow_media_cidrs": ("127.0.0.0/8",), "fetch_timeout_seconds": 2.0}
    made = MediaFetcher(RouterSettings(**(opened | settings)), budget=budget, metrics=metrics)
    try:
        yield made
    finally:
        await made.close()


class Held:
    """Answers once it is let go."""

    def __init__(self, data: bytes = response(IMAGE)) -> None:
        self._data = data
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, visit: Visit, writer: asyncio.StreamWriter) -> None:
        self.asked.set()
        await self.go.wait()
        writer.write(self._data)


def outcomes(metrics: RouterMetrics) -> dict[str, float]:
    (family,) = [each for each in metrics.registry.collect() if each.name == "triptych:media_fetches"]
    counted = [sample for sample in family.samples if sample.name.endswith("_total") and sample.value]
    return {sample.labels["outcome"]: sample.value for sample in counted}


async def test_a_tenants_requests_for_one_url_at_the_same_moment_are_one_fetch() -> None:
    held, metrics = Held(), RouterMetrics()
    async with origin(held) as server, fetcher(metrics=metrics) as fetch:
        tasks = [asyncio.create_task(fetch.fetch(server.url("/a.png#" + str(n)), "one")) for n in range(5)]
        await held.asked.wait()
        held.go.set()
        assert await asyncio.gather(*tasks) == [IMAGE] * 5
        assert server.connections == 1
        assert outcomes(metrics) == {"fetched": 1, "joined": 4}
        await fetch.fetch(server.url(), "one")
    assert server.connections == 2  # nothing was kept


async def test_tenants_do_not_share_a_fetch() -> None:
    async with origin(always(response(IMAGE))) as server, fetcher() as fetch:
        await asyncio.gather(fetch.fetch(server.url(), "one"), fetch.fetch(server.url(), "two"))
    assert server.connections == 2


async def test_the_last_that_leaves_ends_the_fetch() -> None:
    held = Held()
    budget = ByteBudget(1 << 20)
    async with origin(held) as server, fetcher(budget) as fetch:
        tasks = [asyncio.create_task(fetch.fetch(server.url())) for _ in range(2)]
        await held.asked.wait()
        tasks[0].cancel()
        await asyncio.wait({tasks[0]})
        assert not tasks[1].done()
        tasks[1].cancel()
        await asyncio.wait({tasks[1]})
        await until(lambda: fetch.num_running == 0)
    assert budget.held_bytes == 0


async def test_waiting_for_a_slot_of_a_busy_host_counts_in_the_deadline() -> None:
    held = Held()
    async with origin(held) as server, fetcher(fetches_per_host=1, fetch_timeout_seconds=0.3) as fetch:
        results = await asyncio.gather(*(fetch.fetch(server.url(f"/{n}")) for n in range(3)), return_exceptions=True)
    assert [getattr(error, "media_code", error) for error in results] == ["image_fetch_timeout"] * 3
    assert server.connections == 1


async def test_a_declared_length_counts_in_the_budget_before_a_byte_of_it_has_come() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 600\r\n\r\n"
    held = Held(bytes(600))

    async def answer(visit: Visit, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await held(visit, writer)

    budget = ByteBudget(1000)
    async with origin(answer) as server, fetcher(budget) as fetch:
        first = asyncio.create_task(fetch.fetch(server.url("/1")))
        await until(lambda: budget.held_bytes == 600)
        with pytest.raises(Overloaded):
            await fetch.fetch(server.url("/2"))
        held.go.set()
        assert await first == bytes(600)
    assert budget.held_bytes == 0  # handed over: whoever asked counts it from here on


async def test_what_declares_no_length_counts_as_it_comes() -> None:
    data = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + bytes(2000)
    budget = ByteBudget(1000)
    async with origin(always(data)) as server, fetcher(budget) as fetch:
        with pytest.raises(Overloaded):
            await fetch.fetch(server.url())
    assert budget.held_bytes == 0


async def test_an_absurd_declared_length_is_too_large() -> None:
    async with origin(always(response(b"", content_length="9" * 30))) as server, fetcher() as fetch:
        with pytest.raises((MediaTooLarge, InvalidMedia)):
            await fetch.fetch(server.url())


async def test_no_connection_is_made_to_a_host_outside_the_list() -> None:
    async with origin(always(response(IMAGE)), host="localhost") as server:
        async with fetcher(allow_media_hosts=("images.example",)) as fetch:
            with pytest.raises(InvalidMedia) as caught:
                await fetch.fetch(server.url())
        assert caught.value.media_code == "media_url_not_allowed"
        assert server.connections == 0
        async with fetcher(allow_media_hosts=("localhost",)) as fetch:
            assert await fetch.fetch(server.url()) == IMAGE


async def test_a_redirect_to_a_host_outside_the_list_is_not_followed() -> None:
    async with (
        origin(always(response(IMAGE))) as inner,
        origin(always(response(b"", "302 Found", location=inner.url())), host="localhost") as outer,
        fetcher(allow_media_hosts=("localhost",)) as fetch,
    ):
        with pytest.raises(InvalidMedia) as caught:
            await fetch.fetch(outer.url())
    assert caught.value.media_code == "media_url_not_allowed"
    assert inner.connections == 0


# What is kept.


def versioned(headers: str = "cache-control: max-age=0\r\n") -> Answer:
    """Has one version, named by an ETag."""

    async def answer(visit: Visit, writer: asyncio.StreamWriter) -> None:
        if visit.headers.get("if-none-match") == '"v1"':
            writer.write(f'HTTP/1.1 304 Not Modified\r\netag: "v1"\r\n{headers}\r\n'.encode())
        else:
            writer.write(
                f'HTTP/1.1 200 OK\r\netag: "v1"\r\n{headers}content-length: {len(IMAGE)}\r\n\r\n'.encode() + IMAGE
            )

    return answer


async def test_by_default_nothing_is_kept() -> None:
    async with origin(versioned("cache-control: max-age=60\r\n")) as server, fetcher() as fetch:
        assert [await fetch.fetch(server.url()) for _ in range(2)] == [IMAGE] * 2
    assert server.connections == 2
    assert all("if-none-match" not in visit.headers for visit in server.visits)


async def test_what_is_fresh_is_not_asked_for_again() -> None:
    metrics = RouterMetrics()
    async with (
        origin(versioned("cache-control: max-age=60\r\n")) as server,
        fetcher(metrics=metrics, media_cache_bytes=1 << 20) as fetch,
    ):
        assert [await fetch.fetch(server.url(), "one") for _ in range(3)] == [IMAGE] * 3
        assert server.connections == 1
        assert outcomes(metrics) == {"fetched": 1, "kept": 2}
        await fetch.fetch(server.url(), "two")
    assert server.connections == 2


async def test_what_may_have_changed_is_asked_about_and_not_sent_again() -> None:
    metrics = RouterMetrics()
    async with origin(versioned()) as server, fetcher(metrics=metrics, media_cache_bytes=1 << 20) as fetch:
        assert [await fetch.fetch(server.url()) for _ in range(3)] == [IMAGE] * 3
        assert server.connections == 3
        assert outcomes(metrics) == {"fetched": 1, "renewed": 2}


async def test_what_must_not_be_kept_is_not() -> None:
    async with (
        origin(versioned("cache-control: no-store\r\n")) as server,
        fetcher(media_cache_bytes=1 << 20) as fetch,
    ):
        await fetch.fetch(server.url())
        await fetch.fetch(server.url())
    assert all("if-none-match" not in visit.headers for visit in server.visits)


async def test_a_304_that_nobody_asked_for_is_a_failure() -> None:
    async with (
        origin(always(response(b"", "304 Not Modified"))) as server,
        fetcher(media_cache_bytes=1 << 20) as fetch,
    ):
        with pytest.raises(InvalidMedia, match="304"):
            await fetch.fetch(server.url())


async def test_redirects_are_followed_anew_to_what_is_kept() -> None:
    async def answer(visit: Visit, writer: asyncio.StreamWriter) -> None:
        if visit.target == "/first":
            writer.write(response(b"", "302 Found", location="/second"))
        else:
            await versioned("cache-control: max-age=60\r\n")(visit, writer)

    async with origin(answer) as server, fetcher(media_cache_bytes=1 << 20) as fetch:
        assert [await fetch.fetch(server.url("/first")) for _ in range(2)] == [IMAGE] * 2
    assert [visit.target for visit in server.visits] == ["/first", "/second", "/first"]


# The operator's proxy.


async def test_a_proxy_is_asked_for_the_whole_url_and_resolves_the_name_itself() -> None:
    async with (
        origin(always(response(IMAGE))) as proxy,
        fetcher(media_proxy=f"http://name:secret@127.0.0.1:{proxy.port}") as fetch,
    ):
        assert await fetch.fetch("http://images.invalid/a.png?q=1") == IMAGE
    (visit,) = proxy.visits
    assert visit.target == "http://images.invalid/a.png?q=1"
    assert visit.headers["host"] == "images.invalid"
    assert visit.headers["proxy-authorization"].startswith("basic ")


async def test_https_goes_through_a_tunnel_and_a_proxy_that_refuses_one_is_a_failed_fetch() -> None:
    async with (
        origin(always(response(b"", "403 Forbidden"))) as proxy,
        fetcher(media_proxy=f"http://127.0.0.1:{proxy.port}") as fetch,
    ):
        with pytest.raises(InvalidMedia) as caught:
            await fetch.fetch("https://images.invalid/a.png")
    assert caught.value.media_code == "image_fetch_failed"
    assert {visit.target for visit in proxy.visits} == {"images.invalid:443"}


async def test_a_proxy_is_not_asked_for_inner_addresses_or_hosts_outside_the_list() -> None:
    async with origin(always(response(IMAGE))) as proxy:
        chosen = {"media_proxy": proxy.url(""), "allow_media_hosts": (".example", "10.0.0.1"), "allow_media_cidrs": ()}
        async with fetcher(**chosen) as fetch:
            for url in ("http://10.0.0.1/", "http://other.invalid/"):
                with pytest.raises(InvalidMedia) as caught:
                    await fetch.fetch(url)
                assert caught.value.media_code == "media_url_not_allowed"
            assert proxy.connections == 0
            assert await fetch.fetch("http://images.example/") == IMAGE


@pytest.mark.parametrize(
    "url", ["proxy.example:3128", "https://proxy.example", "http://", "http://a/path", "socks5://a"]
)
async def test_a_proxy_that_is_none_is_refused_at_start_without_telling_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="media_proxy") as caught:
        MediaFetcher(RouterSettings(media_proxy=url))
    assert "3128" not in str(caught.value)
