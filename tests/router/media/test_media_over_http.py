"""Images of requests as clients send them: how often they are fetched, and what is told of those that cannot be."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.router.origin import Visit, always, origin, response
from tests.router.serving import PICTURES, chat_body, picture, serving, tiers
from triptych.models.card import ModelCard

pytestmark = pytest.mark.anyio
RED = (PICTURES / "red-circle.png").read_bytes()
HOME: dict[str, Any] = {"allow_media_cidrs": ("127.0.0.0/8",)}


def at(url: Any, **beside: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url if url is None else {"url": url}, **beside}


async def test_an_image_is_fetched_once_for_all_tiers_all_choices_and_all_mentions(card: ModelCard) -> None:
    async with origin(always(response(RED))) as server, serving(card, tiers(card, "e", "p", "d"), **HOME) as served:
        answer = await served.chat([at(server.url()), at(server.url("/a.png#again"))], n=3, max_tokens=4)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["choices"]) == 3
        by_data = await served.chat([picture(), picture()], n=3, max_tokens=4)
    assert server.connections == 1
    assert answer.json()["usage"]["prompt_tokens"] == by_data.json()["usage"]["prompt_tokens"]


async def test_requests_at_the_same_moment_share_a_fetch_and_a_client_that_leaves_harms_nobody(
    card: ModelCard,
) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def answer(visit: Visit, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await go.wait()
        writer.write(response(RED))

    async with origin(answer) as server, serving(card, tiers(card, "epd"), **HOME) as served:
        requests = [asyncio.create_task(served.chat([at(server.url())], max_tokens=2)) for _ in range(4)]
        await asked.wait()
        requests[0].cancel()
        await asyncio.wait({requests[0]})
        go.set()
        answers = await asyncio.gather(*requests[1:])
        assert [each.status_code for each in answers] == [200] * 3
        assert served.router.budget.held_bytes == 0
    assert server.connections == 1


async def test_an_image_named_once_may_be_left_out_afterwards(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd")) as served:
        unknown = await served.chat([at(None, uuid="red")], max_tokens=2)
        assert unknown.status_code == 400
        error = unknown.json()["error"]
        assert (error["code"], error["param"]) == ("image_uuid_unknown", "messages[0].content[0].image_url.url")
        sent = await served.ids([picture() | {"uuid": "red"}], max_tokens=4)
        for part in (at(None, uuid="red"), at("", uuid="red"), {"type": "image_url", "uuid": "red"}):
            assert await served.ids([part], max_tokens=4) == sent
        other = await served.chat([picture("tower.png") | {"uuid": "red"}], max_tokens=2)
        assert (other.status_code, other.json()["error"]["code"]) == (400, "image_uuid_mismatch")


@pytest.mark.parametrize("uuid", ["", 5, ["a"], "x" * 257])
async def test_a_uuid_that_is_none_is_refused_by_its_path(card: ModelCard, uuid: Any) -> None:
    async with serving(card) as served:
        answer = await served.chat([picture() | {"uuid": uuid}])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[0].uuid"


async def test_an_empty_image_without_a_uuid_is_refused(card: ModelCard) -> None:
    async with serving(card) as served:
        for part in (at(None), at(""), {"type": "image_url"}, at(None, uuid=None)):
            answer = await served.chat([part])
            assert answer.status_code == 400
            assert answer.json()["error"]["param"].startswith("messages[0].content[0].image_url")


async def test_options_and_salts_are_taken_from_the_request(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd")) as served:
        plain = await served.chat([picture()], max_tokens=1)
        small = await served.chat([picture()], max_tokens=1, mm_processor_kwargs={"max_pixels": 28 * 28 * 4})
        assert small.json()["usage"]["prompt_tokens"] < plain.json()["usage"]["prompt_tokens"]
        assert (await served.chat([picture()], max_tokens=1, cache_salt="mine")).status_code == 200
        unknown = await served.chat([picture()], max_tokens=1, mm_processor_kwargs={"use_fast": True})
        assert unknown.status_code == 400
        assert unknown.json()["error"]["param"] == "mm_processor_kwargs.use_fast"
        empty = await served.chat([picture()], max_tokens=1, cache_salt="")
        assert (empty.status_code, empty.json()["error"]["param"]) == (400, "cache_salt")


async def test_loopback_is_refused_by_default_without_a_connection(card: ModelCard) -> None:
    async with origin(always(response(RED))) as server, serving(card) as served:
        answer = await served.chat([at(server.url())])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "media_url_not_allowed")
    assert server.connections == 0


async def test_hosts_outside_the_list_are_refused_and_data_uris_are_not(card: ModelCard) -> None:
    chosen = HOME | {"allow_media_hosts": ("images.example",)}
    async with origin(always(response(RED))) as server, serving(card, tiers(card, "epd"), **chosen) as served:
        answer = await served.chat([at(server.url())])
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "media_url_not_allowed")
        assert (await served.chat([picture()], max_tokens=1)).status_code == 200
    assert server.connections == 0


async def test_an_origins_refusal_names_the_part(card: ModelCard) -> None:
    async with origin(always(response(b"", "404 Not Found"))) as server, serving(card, **HOME) as served:
        answer = await served.chat([picture(), at(server.url())])
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "image_fetch_failed")
    assert error["param"] == "messages[0].content[1].image_url.url"


async def test_an_image_that_declares_too_much_is_a_413(card: ModelCard) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n"
    async with origin(always(head)) as server, serving(card, **HOME, max_image_bytes=1000) as served:
        answer = await served.chat([at(server.url())])
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "image_too_large")


async def test_files_below_a_root_are_images_like_others(card: ModelCard) -> None:
    red = Path(PICTURES, "red-circle.png").resolve()
    async with serving(card, tiers(card, "epd"), media_roots=(str(red.parent),)) as served:
        assert await served.ids([at(f"file://{red}")], max_tokens=3) == await served.ids([picture()], max_tokens=3)
        outside = await served.chat([at("file:///etc/passwd")])
        assert (outside.status_code, outside.json()["error"]["code"]) == (400, "media_url_not_allowed")


async def test_a_body_over_what_the_server_can_hold_now_is_a_429_that_says_when_to_come_back(card: ModelCard) -> None:
    async with serving(card, media_budget_bytes=1000) as served:
        answer = await served.client.post("/v1/chat/completions", json=chat_body("x" * 2000))
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["type"] == "rate_limit_error"
