"""What a request says about its images reaches the plan, the digests and the prompt's salt."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.router.api.tool_template import TOOL_TEMPLATE
from tests.router.serving import chat_body, image, picture, serving, tiers, until
from triptych.config import RouterSettings
from triptych.errors import ContextTooLong, InvalidRequest
from triptych.metrics import RouterMetrics
from triptych.models.card import ModelCard
from triptych.router.api.messages import DETAILS
from triptych.router.api.schema import Chat
from triptych.router.edge.budget import ByteBudget
from triptych.router.edge.caller import Caller
from triptych.router.fleet.fleet import Fleet
from triptych.router.media.fetch import MediaFetcher
from triptych.router.media.loader import MediaLoader
from triptych.router.observe.timeline import Timeline
from triptych.router.pipeline.prepare import Preparer
from triptych.router.pipeline.prompt import PromptBuilder
from triptych.router.pipeline.request import Prepared
from triptych.router.threads import WorkThreads

pytestmark = pytest.mark.anyio


def png(width: int, height: int) -> bytes:
    """A black one; all that counts here is its header."""
    rows = zlib.compress(bytes((width // 8 + 1) * height))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


class Desk:
    """A preparer without workers."""

    def __init__(self, card: ModelCard, prompts: PromptBuilder, *, isolate_tenants: bool = True) -> None:
        settings = RouterSettings()
        self.fleet = Fleet(settings, card.fingerprint, RouterMetrics(), media_by_memfd=False)
        loader = MediaLoader(settings, MediaFetcher(settings))
        self._preparer = Preparer(card, prompts, loader, self.fleet, 16, WorkThreads(), isolate_tenants=isolate_tenants)

    async def prepare(self, *content: Any, tenant: str = "", detail: str = "", **fields: Any) -> Prepared:
        if detail:
            content = tuple(_with_detail(part, detail) for part in content)
        chat = Chat.parse(json.dumps(chat_body(list(content), **fields)).encode())
        return await self._preparer.prepare(chat, ByteBudget(1 << 30).holding(), Timeline(), Caller(tenant))


def _with_detail(part: dict[str, Any], detail: str) -> dict[str, Any]:
    return {**part, "image_url": {**part["image_url"], "detail": detail}}


@pytest.fixture
def desk(card: ModelCard, prompts: PromptBuilder) -> Desk:
    return Desk(card, prompts)


def options(**chosen: Any) -> dict[str, Any]:
    return {"mm_processor_kwargs": chosen}


async def test_the_same_image_under_another_option_is_another_item_of_another_size(desk: Desk) -> None:
    asked = [{}, options(max_pixels=28 * 28 * 9), options(max_pixels=28 * 28 * 10), options(min_pixels=1)]
    items = [(await desk.prepare(picture(), **each)).layout.items[0] for each in asked]
    assert len({item.digest for item in items}) == 4
    assert items[0].grid == items[3].grid  # the option changes nothing here, and still it is not the same item
    assert items[1].rows <= 9 < items[0].rows


async def test_options_hold_for_every_image_of_the_request(desk: Desk) -> None:
    prepared = await desk.prepare(picture(), picture("tower.png"), **options(max_pixels=28 * 28 * 9))
    assert all(item.rows <= 9 for item in prepared.layout.items)
    assert len({item.digest for item in prepared.layout.items}) == 2


async def test_another_salt_shares_neither_rows_nor_kv(desk: Desk) -> None:
    plain, one, other = [
        await desk.prepare(picture(), picture(), **salt) for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "b"})
    ]
    for prepared in (plain, one, other):
        assert len({item.digest for item in prepared.layout.items}) == 1  # inside a request they are shared
    assert len({prepared.layout.items[0].digest for prepared in (plain, one, other)}) == 3
    assert plain.cache_salt == b""
    assert len({prepared.cache_salt for prepared in (plain, one, other)}) == 3


async def test_tenants_share_nothing_unless_they_are_let(card: ModelCard, prompts: PromptBuilder, desk: Desk) -> None:
    apart = [await desk.prepare(picture(), tenant=tenant, cache_salt="a") for tenant in ("", "one", "two")]
    assert len({prepared.layout.items[0].digest for prepared in apart}) == 3
    assert len({prepared.cache_salt for prepared in apart}) == 3
    open_desk = Desk(card, prompts, isolate_tenants=False)
    together = [await open_desk.prepare(picture(), tenant=tenant, cache_salt="a") for tenant in ("", "one", "two")]
    assert {prepared.cache_salt for prepared in together} == {apart[0].cache_salt}
    assert len({prepared.layout.items[0].digest for prepared in together}) == 1


async def test_low_detail_makes_a_large_image_smaller_and_leaves_a_small_one_the_same_item(desk: Desk) -> None:
    large = image(png(2000, 1000))
    plain, low = [(await desk.prepare(large, detail=detail)).layout.items[0] for detail in ("", "low")]
    assert plain.rows == 71 * 36
    assert 300 <= low.rows <= 512 * 512 // 28**2
    assert low.digest != plain.digest
    small, small_low = [(await desk.prepare(picture(), detail=detail)).layout.items[0] for detail in ("auto", "low")]
    assert small_low.digest == small.digest


async def test_other_details_are_the_models_own_way(desk: Desk) -> None:
    large = image(png(2000, 1000))
    digests = {
        (await desk.prepare(large, detail=detail)).layout.items[0].digest for detail in DETAILS if detail != "low"
    }
    assert digests == {(await desk.prepare(large)).layout.items[0].digest}


async def test_the_smaller_of_detail_and_options_holds(desk: Desk) -> None:
    large = image(png(2000, 1000))
    low = (await desk.prepare(large, detail="low")).layout.items[0]
    tiny = (await desk.prepare(large, detail="low", **options(max_pixels=28 * 28 * 9))).layout.items[0]
    wide = (await desk.prepare(large, detail="low", **options(max_pixels=28 * 28 * 9000))).layout.items[0]
    forced = (await desk.prepare(large, detail="low", **options(min_pixels=28 * 28 * 500))).layout.items[0]
    assert tiny.rows <= 9
    assert (wide.rows, wide.digest) == (low.rows, low.digest)
    assert low.rows < forced.rows  # what was said in numbers goes before what was said in words


@pytest.mark.parametrize(
    ("chosen", "message", "param"),
    [
        ({"depth": 3}, "'depth'; this model takes max_pixels, min_pixels", "depth"),
        ({"size": {}, "device": "cuda"}, "'device', 'size'", "device"),
        ({"max_pixels": "9"}, "no whole number above 0", "max_pixels"),
        ({"max_pixels": 0}, "no whole number above 0", "max_pixels"),
        ({"max_pixels": True}, "no whole number above 0", "max_pixels"),
        ({"max_pixels": 1.5}, "no whole number above 0", "max_pixels"),
        ({"max_pixels": 1 << 70}, "no whole number above 0", "max_pixels"),
        ({"max_pixels": None}, "no whole number above 0", "max_pixels"),
        ({"min_pixels": 1 << 40, "max_pixels": 1 << 40}, "takes at most", "max_pixels"),
        ({"min_pixels": 9, "max_pixels": 8}, "min_pixels 9 is above max_pixels 8", "min_pixels"),
    ],
)
async def test_an_option_that_cannot_be_used_fails_the_request(
    desk: Desk, chosen: dict[str, Any], message: str, param: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        await desk.prepare(picture(), picture(), **options(**chosen))
    assert caught.value.param == f"mm_processor_kwargs.{param}"


async def test_unknown_options_are_refused_also_without_an_image(desk: Desk) -> None:
    with pytest.raises(InvalidRequest, match="has 17 entries"):
        await desk.prepare({"type": "text", "text": "hi"}, **options(**{str(n): n for n in range(17)}))


async def test_an_image_that_no_encoder_can_hold_is_refused_before_anyone_is_asked(card: ModelCard) -> None:
    small, large, rest = tiers(card, "e", "e", "pd")
    small.max_item_tokens, large.max_item_tokens = 16, 60
    async with serving(card, [small, large, rest]) as served:
        response = await served.chat([picture("red-circle.png")])
        assert response.status_code == 413
        error = response.json()["error"]
        assert "becomes 64 encoder tokens, the encoders of this server take at most 60" in error["message"]
        assert error["param"] == "messages[0].content[0].image_url.url"
        assert (small.log, large.log, rest.log) == ([], [], [])
        large.max_item_tokens = 64
        await until(lambda: served.router.fleet.max_item_tokens() == 64)
        assert (await served.chat([picture("red-circle.png")], max_tokens=2)).status_code == 200


@pytest.mark.parametrize(
    ("words", "tools", "param"), [(10, 128, "tools"), (9000, 1, "messages"), (9000, 128, "messages")]
)
async def test_a_prompt_that_is_too_long_on_account_of_tools_says_so(
    card: ModelCard, tmp_path: Path, words: int, tools: int, param: str
) -> None:
    template = tmp_path / "tools.jinja"
    template.write_text(TOOL_TEMPLATE)
    desk = Desk(card, PromptBuilder(card, str(template)))
    offered = [
        {"type": "function", "function": {"name": f"tool_{number}", "description": "does " * 60}}
        for number in range(tools)
    ]
    with pytest.raises(ContextTooLong, match="maximum context length") as caught:
        await desk.prepare({"type": "text", "text": "word " * words}, tools=offered)
    assert caught.value.param == param
    assert ("Tools take" in caught.value.message) == (param == "tools")
