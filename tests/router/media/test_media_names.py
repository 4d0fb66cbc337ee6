"""Images by the uuid that their clients gave them."""

import base64
from pathlib import Path

import pytest

from tests.router.origin import always, origin, response
from triptych.config import RouterSettings
from triptych.errors import InvalidMedia, MediaTooLarge
from triptych.multimodal.digest import source_digest
from triptych.multimodal.sniff import sniff
from triptych.router.api.messages import ImagePart
from triptych.router.edge.budget import ByteBudget
from triptych.router.media.fetch import MediaFetcher
from triptych.router.media.loader import MediaLoader, Picture
from triptych.router.media.names import MediaNames, Named, Namespace
from triptych.router.observe.timeline import Timeline

pytestmark = pytest.mark.anyio
DATA = Path(__file__).parent.parent.parent / "data"
RED = (DATA / "red-circle.png").read_bytes()
CAFE = (DATA / "sign-cafe.jpg").read_bytes()
ONE: Namespace = ("one", "")


class Desk:
    """One loader for several requests."""

    def __init__(self, **settings: int) -> None:
        chosen = RouterSettings(allow_media_cidrs=("127.0.0.0/8",), **settings)
        self._loader = MediaLoader(chosen, MediaFetcher(chosen))
        self.budget = ByteBudget(1 << 30)

    async def load(self, *images: tuple[str, str], space: Namespace = ONE) -> list[Picture]:
        """images: URL and uuid of each, as a request has them."""
        parts = [ImagePart(url, f"[{index}].url", uuid) for index, (url, uuid) in enumerate(images)]
        with self.budget.holding() as holding:
            return await self._loader.load(parts, holding, Timeline(), space)

    async def refusal(self, *images: tuple[str, str], space: Namespace = ONE) -> InvalidMedia:
        with pytest.raises(InvalidMedia) as caught:
            await self.load(*images, space=space)
        assert caught.value.http_status == 400
        return caught.value


def uri(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


async def test_a_name_stands_for_the_image_that_came_with_it() -> None:
    desk = Desk()
    (sent,) = await desk.load((uri(RED), "a"))
    (named,) = await desk.load(("", "a"))
    assert (named.media.data, named.media.digest, named.header) == (RED, sent.media.digest, sent.header)


async def test_named_and_sent_images_keep_their_order_and_equal_bytes_are_one_media() -> None:
    desk = Desk()
    await desk.load((uri(RED), "a"))
    pictures = await desk.load(("", "a"), (uri(CAFE), ""), (uri(RED), ""), ("", "a"))
    assert [picture.media.index for picture in pictures] == [0, 1, 0, 0]
    assert [picture.header.format for picture in pictures] == ["png", "jpeg", "png", "png"]
    assert [picture.part.url == "" for picture in pictures] == [True, False, False, True]


async def test_a_name_that_was_never_heard_is_asked_for_with_its_image() -> None:
    error = await Desk().refusal((uri(RED), ""), ("", "a"))
    assert (error.media_code, error.item_index, error.param) == ("image_uuid_unknown", 1, "[1].url")
    assert "send the image again" in error.message


@pytest.mark.parametrize("space", [("two", ""), ("", ""), ("one", "salt")])
async def test_other_tenants_and_salts_know_nothing_of_a_name(space: Namespace) -> None:
    desk = Desk()
    await desk.load((uri(RED), "a"))
    assert (await desk.refusal(("", "a"), space=space)).media_code == "image_uuid_unknown"
    (theirs,) = await desk.load((uri(CAFE), "a"), space=space)  # and may give it to something else
    assert theirs.header.format == "jpeg"
    (ours,) = await desk.load(("", "a"))
    assert ours.header.format == "png"


async def test_another_image_under_a_known_name_is_refused_and_the_first_stays() -> None:
    desk = Desk()
    await desk.load((uri(RED), "a"))
    error = await desk.refusal((uri(CAFE), "a"))
    assert error.media_code == "image_uuid_mismatch"
    assert "'a'" in error.message
    (named,) = await desk.load(("", "a"))
    assert named.media.data == RED


async def test_within_a_request_a_name_may_come_before_its_image_and_must_stay_true() -> None:
    desk = Desk(media_names_bytes=0)
    first, second = await desk.load(("", "a"), (uri(RED), "a"))
    assert first.media is second.media
    assert (await desk.refusal((uri(RED), "a"), (uri(CAFE), "a"))).media_code == "image_uuid_mismatch"


async def test_what_could_not_be_used_is_not_remembered() -> None:
    desk = Desk()
    await desk.refusal((uri(b"garbage"), "a"))
    assert (await desk.refusal(("", "a"))).media_code == "image_uuid_unknown"


async def test_a_fetched_image_may_be_named_and_need_not_be_fetched_again() -> None:
    desk = Desk()
    async with origin(always(response(RED))) as server:
        await desk.load((server.url(), "a"))
        (named,) = await desk.load(("", "a"))
        assert server.connections == 1
    assert named.media.data == RED


async def test_named_images_count_in_the_budgets_of_the_request() -> None:
    desk = Desk(max_request_pixels=2 * sniff(RED).pixels - 1, max_request_media_bytes=len(RED) + len(CAFE) - 1)
    other = RED + b"\0"  # behind the end of the picture
    await desk.load((uri(RED), "a"))
    await desk.load((uri(other), "b"))
    await desk.load((uri(CAFE), "c"))
    assert desk.budget.held_bytes == 0
    await desk.load(("", "a"), ("", "a"))
    assert "pixels together" in (await desk.refusal(("", "a"), ("", "b"))).message
    with pytest.raises(MediaTooLarge, match="bytes together"):
        await desk.load(("", "a"), ("", "c"))


def named(data: bytes) -> Named:
    return Named(data, source_digest(data), sniff(RED))


def test_the_least_recently_used_name_goes_first() -> None:
    held: list[int] = []
    names = MediaNames(3 * (1024 + 1 + 10), held.append)
    for uuid in "abc":
        names.learn(ONE, uuid, named(uuid.encode() * 10))
    names.find(ONE, "a")
    names.learn(ONE, "b", named(b"b" * 10))
    names.learn(ONE, "d", named(b"d" * 10))
    with pytest.raises(InvalidMedia, match="any more"):
        names.find(ONE, "c")
    assert names.find(ONE, "d").data == b"d" * 10
    assert held[-1] == names.held_bytes == names.limit_bytes


def test_what_is_larger_than_all_room_is_not_remembered() -> None:
    names = MediaNames(2000)
    names.learn(ONE, "a", named(b"x"))
    names.learn(ONE, "b", named(bytes(2000)))
    assert names.find(ONE, "a").data == b"x"
    with pytest.raises(InvalidMedia):
        names.find(ONE, "b")
