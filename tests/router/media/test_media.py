"""Images of a request: loaded once, numbered, judged by their headers, blamed by their index."""

import base64
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.router.liveness import lively
from tests.router.origin import Origin, always, origin, response
from triptych.config import RouterSettings
from triptych.errors import InvalidMedia, MediaTooLarge, Overloaded
from triptych.multimodal.digest import source_digest
from triptych.multimodal.sniff import MediaHeader, sniff
from triptych.router.api.messages import ImagePart
from triptych.router.edge.budget import ByteBudget
from triptych.router.media import loader as media
from triptych.router.media.fetch import MediaFetcher
from triptych.router.media.loader import MediaLoader, Picture
from triptych.router.observe.timeline import Timeline

pytestmark = pytest.mark.anyio
DATA = Path(__file__).parent.parent.parent / "data"
RED = (DATA / "red-circle.png").read_bytes()
CAFE = (DATA / "sign-cafe.jpg").read_bytes()


def data_uri(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


async def load(urls: Sequence[str], budget: ByteBudget | None = None, **settings: Any) -> list[Picture]:
    chosen = RouterSettings(**({"allow_media_cidrs": ("127.0.0.0/8",), "allow_media_ports": ()} | settings))
    fetcher = MediaFetcher(chosen)
    parts = [ImagePart(url, f"messages[0].content[{index}].image_url.url") for index, url in enumerate(urls)]
    try:
        holding = (budget or ByteBudget(1 << 30)).holding()
        return await MediaLoader(chosen, fetcher).load(parts, holding, Timeline())
    finally:
        await fetcher.close()


@asynccontextmanager
async def serving(data: bytes) -> AsyncIterator[Origin]:
    async with origin(always(response(data))) as server:
        yield server


async def test_pictures_keep_their_order_and_equal_bytes_are_one_media() -> None:
    pictures = await load([data_uri(RED), data_uri(CAFE), data_uri(RED)])
    assert [picture.media.index for picture in pictures] == [0, 1, 0]
    assert pictures[0].media.digest == source_digest(RED)
    assert pictures[1].header.format == "jpeg"


async def test_one_url_is_fetched_once_however_often_it_is_named() -> None:
    async with serving(RED) as server:
        pictures = await load([server.url(), server.url(), server.url("/other.png")])
    assert [picture.media.index for picture in pictures] == [0, 0, 0]  # the other URL holds the same bytes
    assert sorted(visit.target for visit in server.visits) == ["/a.png", "/other.png"]


async def test_the_bad_image_is_named_by_index_and_path() -> None:
    with pytest.raises(InvalidMedia) as caught:
        await load([data_uri(RED), data_uri(b"<html></html>")])
    assert caught.value.item_index == 1
    assert caught.value.param == "messages[0].content[1].image_url.url"
    assert caught.value.media_code == "unsupported_image_format"


@pytest.mark.parametrize("data", [b"", b"garbage", RED[:20], CAFE[:30]])
async def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidMedia):
        await load([data_uri(data)])


async def test_a_page_behind_a_url_is_refused() -> None:
    async with serving(b"<!doctype html><html>not found</html>") as server:
        with pytest.raises(InvalidMedia, match="HTML"):
            await load([server.url()])


async def test_a_file_named_often_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []

    def look(data: bytes) -> MediaHeader:
        looked_at.append(data)
        return sniff(data)

    monkeypatch.setattr(media, "sniff", look)
    other = data_uri(RED).replace("image/png", "image/webp")  # another URL, the same bytes
    pictures = await load([data_uri(RED), data_uri(CAFE), other] * 20)
    assert looked_at == [RED, CAFE]
    assert {picture.header.format for picture in pictures[::3]} == {"png"}


async def test_a_header_of_many_pieces_is_looked_at_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()

    def look(data: bytes) -> MediaHeader:
        threads.add(threading.current_thread())
        return sniff(data)

    monkeypatch.setattr(media, "sniff", look)
    start_of_frame = b"\xff\xc0\x00\x0b\x08\x00\x09\x00\x09\x01\x01\x11\x00\xff\xda\x00\x02"
    data = b"\xff\xd8" + b"\xff\xe2\x00\x02" * 60_000 + start_of_frame
    async with lively():
        pictures = await load([data_uri(data)] * 64)
    assert {picture.header.width for picture in pictures} == {9}
    assert threading.current_thread() not in threads


async def test_too_many_pixels_are_refused_by_the_header_alone() -> None:
    with pytest.raises(InvalidMedia) as caught:
        await load([data_uri(CAFE), data_uri(RED)], max_image_pixels=100)
    assert caught.value.item_index == 0
    assert caught.value.http_status == 400
    assert caught.value.media_code == "image_too_large"


async def test_a_requests_different_images_share_a_limit_of_pixels() -> None:
    most = sniff(RED).pixels + sniff(CAFE).pixels
    await load([data_uri(RED), data_uri(CAFE), data_uri(RED)], max_request_pixels=most)
    with pytest.raises(InvalidMedia, match="together") as caught:
        await load([data_uri(RED), data_uri(RED), data_uri(CAFE)], max_request_pixels=most - 1)
    assert (caught.value.item_index, caught.value.media_code) == (2, "image_too_large")


async def test_a_requests_different_images_share_a_limit_of_bytes() -> None:
    most = len(RED) + len(CAFE)
    await load([data_uri(RED), data_uri(CAFE), data_uri(RED)], max_request_media_bytes=most)
    with pytest.raises(MediaTooLarge, match="together"):
        await load([data_uri(RED), data_uri(CAFE)], max_request_media_bytes=most - 1)


async def test_media_count_in_the_budget() -> None:
    budget = ByteBudget(len(RED) + 10)
    await load([data_uri(RED), data_uri(RED)], budget)
    assert budget.held_bytes == len(RED)
    with pytest.raises(Overloaded):
        await load([data_uri(CAFE)], budget)
    assert budget.held_bytes == len(RED)


def test_a_holding_gives_back_what_it_took_once() -> None:
    told: list[int] = []
    budget = ByteBudget(100, told.append)
    with budget.holding() as holding:
        holding.take(60)
        with pytest.raises(Overloaded):
            holding.take(50)
        holding.take(40)
    holding.close()
    assert told[-1] == budget.held_bytes == 0
