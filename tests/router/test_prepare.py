"""What a request says about its images reaches the plan, the digests and the prompt's salt."""

import json
from typing import Any

import pytest

from tests.router.serving import chat_body, picture, serving, tiers, until
from triptych.config import RouterSettings
from triptych.errors import InvalidRequest
from triptych.metrics import RouterMetrics
from triptych.models.card import ModelCard
from triptych.router.budget import ByteBudget
from triptych.router.fetch import MediaFetcher
from triptych.router.fleet import Fleet
from triptych.router.media import MediaLoader
from triptych.router.prepare import NO_TERMS, ItemTerms, Preparer
from triptych.router.prompt import PromptBuilder
from triptych.router.request import Prepared
from triptych.router.schema import Chat
from triptych.router.threads import WorkThreads
from triptych.router.timeline import Timeline

pytestmark = pytest.mark.anyio


class Desk:
    """A preparer without workers."""

    def __init__(self, card: ModelCard, prompts: PromptBuilder) -> None:
        settings = RouterSettings()
        self.fleet = Fleet(settings, card.fingerprint, RouterMetrics(), media_by_memfd=False)
        loader = MediaLoader(settings, MediaFetcher(settings))
        self._preparer = Preparer(card, prompts, loader, self.fleet, 16, WorkThreads())

    async def prepare(self, *content: Any, terms: ItemTerms = NO_TERMS) -> Prepared:
        chat = Chat.parse(json.dumps(chat_body(list(content))).encode())
        return await self._preparer.prepare(chat, ByteBudget(1 << 30).holding(), Timeline(), terms)


@pytest.fixture
def desk(card: ModelCard, prompts: PromptBuilder) -> Desk:
    return Desk(card, prompts)


def options(**chosen: int) -> ItemTerms:
    return ItemTerms(chosen)


async def test_the_same_image_under_another_option_is_another_item_of_another_size(desk: Desk) -> None:
    terms = [NO_TERMS, options(max_pixels=28 * 28 * 9), options(max_pixels=28 * 28 * 10), options(min_pixels=1)]
    items = [(await desk.prepare(picture(), terms=each)).layout.items[0] for each in terms]
    assert len({item.digest for item in items}) == 4
    assert items[0].grid == items[3].grid  # the option changes nothing here, and still it is not the same item
    assert items[1].rows <= 9 < items[0].rows


async def test_options_hold_for_every_image_of_the_request(desk: Desk) -> None:
    prepared = await desk.prepare(picture(), picture("tower.png"), terms=options(max_pixels=28 * 28 * 9))
    assert all(item.rows <= 9 for item in prepared.layout.items)
    assert len({item.digest for item in prepared.layout.items}) == 2


async def test_another_salt_shares_neither_rows_nor_kv(desk: Desk) -> None:
    plain, one, other = [
        await desk.prepare(picture(), picture(), terms=ItemTerms(cache_salt=salt)) for salt in (b"", b"a", b"b")
    ]
    for prepared in (plain, one, other):
        assert len({item.digest for item in prepared.layout.items}) == 1  # inside a request they are shared
    assert len({prepared.layout.items[0].digest for prepared in (plain, one, other)}) == 3
    assert [prepared.cache_salt for prepared in (plain, one, other)] == [b"", b"a", b"b"]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"depth": 3}, "unknown image option 'depth'; known ones: max_pixels, min_pixels"),
        ({"max_pixels": object()}, "max_pixels is <object"),
        ({"max_pixels": 0}, "max_pixels is 0"),
    ],
)
async def test_an_option_that_cannot_be_used_fails_the_request(
    desk: Desk, chosen: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        await desk.prepare(picture(), picture(), terms=ItemTerms(chosen))
    assert caught.value.item_index == 0


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
