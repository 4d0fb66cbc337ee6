"""Named images in memory that several routers share: what one has heard all know, and nothing wrong is ever served."""

import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from tests.router.media.test_media_names import ONE, RED, uri
from triptych.config import RouterSettings
from triptych.errors import InvalidMedia
from triptych.multimodal.digest import source_digest
from triptych.multimodal.header import MediaHeader
from triptych.router.api.messages import ImagePart
from triptych.router.commons import Commons
from triptych.router.edge.budget import ByteBudget
from triptych.router.media.common_names import CommonNames
from triptych.router.media.fetch import MediaFetcher
from triptych.router.media.loader import MediaLoader
from triptych.router.media.names import ENTRY_BYTES, Named
from triptych.router.observe.timeline import Timeline

LIMIT = 16 * ENTRY_BYTES
SECONDS = 20.0
FORK = multiprocessing.get_context("fork")
HEADER = MediaHeader("webp", 30, 20, 20, 30, orientation=6, frames_hint=2)


@pytest.fixture
def commons() -> Iterator[Commons]:
    commons = Commons(2, LIMIT)
    yield commons
    commons.close()


def names_of(commons: Commons) -> CommonNames:
    return commons.names(lambda held: None)


def named(data: bytes) -> Named:
    return Named(data, source_digest(data), HEADER)


def found(names: CommonNames, uuid: str) -> Named | None:
    """None where it is unknown."""
    try:
        return names.find(ONE, uuid)
    except InvalidMedia as error:
        if error.media_code != "image_uuid_unknown":
            raise
        return None


def unknown(names: CommonNames, uuid: str) -> bool:
    return found(names, uuid) is None


def test_what_one_router_has_heard_another_finds_whole(commons: Commons) -> None:
    one, other = names_of(commons), names_of(commons)
    one.learn(ONE, "a", named(b"picture"))
    assert other.find(ONE, "a") == named(b"picture")
    assert unknown(other, "b")
    for space in (("two", ""), ("one", "salt"), ("on", "e")):
        with pytest.raises(InvalidMedia):
            other.find(space, "a")


def test_another_image_under_a_name_that_any_router_knows_is_refused(commons: Commons) -> None:
    one, other = names_of(commons), names_of(commons)
    one.learn(ONE, "a", named(b"first"))
    other.learn(ONE, "a", named(b"first"))
    with pytest.raises(InvalidMedia) as caught:
        other.learn(ONE, "a", named(b"second"))
    assert caught.value.media_code == "image_uuid_mismatch"
    assert one.find(ONE, "a").data == b"first"


def test_the_oldest_go_first_and_those_that_are_used_stay(commons: Commons) -> None:
    names, rng = names_of(commons), random.Random(1)
    kept = rng.randbytes(1000)
    names.learn(ONE, "kept", named(kept))
    for number in range(200):
        names.learn(ONE, f"n{number}", named(rng.randbytes(1000)))
        assert names.find(ONE, "kept").data == kept
    assert unknown(names, "n0")
    assert unknown(names, "n150")
    assert not unknown(names, "n199")


def test_there_are_no_more_names_than_places_for_them(commons: Commons) -> None:
    names = names_of(commons)
    for number in range(20):
        names.learn(ONE, str(number), named(b"%d" % number))
    assert [unknown(names, str(number)) for number in range(20)] == [True] * 4 + [False] * 16


@pytest.mark.parametrize("limit", [0, 10 * ENTRY_BYTES])
def test_what_is_larger_than_all_room_is_not_remembered(limit: int) -> None:
    names = CommonNames(limit)
    names.learn(ONE, "a", named(bytes(10 * ENTRY_BYTES)))
    assert unknown(names, "a")


def test_how_much_is_held_is_told() -> None:
    told: list[int] = []
    names = CommonNames(LIMIT, changed=told.append)
    for number in range(3):
        names.learn(ONE, str(number), named(bytes(LIMIT // 2)))
    assert told == [LIMIT // 2, LIMIT, LIMIT]


def test_an_image_that_was_overwritten_while_it_was_read_is_unknown(commons: Commons) -> None:
    names = names_of(commons)
    names.learn(ONE, "a", named(b"a" * 1000))
    at = names._memory.find(b"a" * 1000)
    names._memory[at] = 0
    assert unknown(names, "a")


def _learn_for_ever(commons: Commons, told: Connection) -> None:
    names, rng = names_of(commons), random.Random(7)
    told.send("begun")
    while True:
        names.learn(ONE, f"theirs{rng.randrange(50)}-{rng.random()}", named(rng.randbytes(rng.randrange(4000))))


@pytest.mark.parametrize("seed", range(3))
def test_a_router_that_is_killed_while_it_writes_leaves_nothing_wrong(commons: Commons, seed: int) -> None:
    names, rng = names_of(commons), random.Random(seed)
    ours, theirs = FORK.Pipe()
    writer = FORK.Process(target=_learn_for_ever, args=(commons, theirs))
    writer.start()
    assert ours.recv() == "begun"
    images = [named(rng.randbytes(rng.randrange(1, 4000))) for _ in range(300)]
    for number, image in enumerate(images):
        names.learn(ONE, str(number), image)
        if number == 150:
            assert writer.pid is not None
            os.kill(writer.pid, signal.SIGKILL)
        for back in range(max(0, number - 4), number + 1):
            assert found(names, str(back)) in (images[back], None)
    writer.join(SECONDS)
    assert writer.exitcode == -signal.SIGKILL
    assert names.find(ONE, "299") == images[299]


@pytest.mark.anyio
async def test_a_request_may_name_an_image_that_came_to_another_router(commons: Commons) -> None:
    settings, budget = RouterSettings(), ByteBudget(1 << 30)
    one, other = (MediaLoader(settings, MediaFetcher(settings), names_of(commons)) for _ in range(2))
    with budget.holding() as holding:
        await one.load([ImagePart(uri(RED), "a.url", "a")], holding, Timeline(), ONE)
        (picture,) = await other.load([ImagePart("", "a.url", "a")], holding, Timeline(), ONE)
    assert picture.media.data == RED
    assert (picture.header.format, picture.media.digest) == ("png", source_digest(RED))
