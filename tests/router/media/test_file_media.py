"""file:// URLs: below the named folders, and nothing else on the host."""

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from triptych.config import RouterSettings
from triptych.errors import ConfigError, InvalidMedia, MediaTooLarge
from triptych.router.media.fetch import MediaFetcher
from triptych.router.media.file_media import FileMedia

pytestmark = pytest.mark.anyio
IMAGE = b"\x89PNG and so on"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.png").write_bytes(IMAGE)
    (folder / "deep" / "with space é.png").write_bytes(IMAGE + b"!")
    (tmp_path / "secret.png").write_bytes(b"secret")
    return folder


@asynccontextmanager
async def files(*roots: Path | str, **settings: Any) -> AsyncIterator[MediaFetcher]:
    fetcher = MediaFetcher(RouterSettings(media_roots=tuple(map(str, roots)), **settings))
    try:
        yield fetcher
    finally:
        await fetcher.close()


async def refusal(url: str, *roots: Path, **settings: Any) -> tuple[str, str]:
    async with files(*roots, **settings) as fetcher:
        with pytest.raises(InvalidMedia) as caught:
            await fetcher.fetch(url)
    assert caught.value.http_status == 400
    return caught.value.media_code, caught.value.message


async def test_files_below_a_root_are_read(root: Path) -> None:
    async with files(root) as fetcher:
        assert await fetcher.fetch(f"file://{root}/a.png") == IMAGE
        assert await fetcher.fetch(f"FILE://localhost{root}/a.png") == IMAGE
        assert await fetcher.fetch(f"file://{root}/deep/with%20space%20%C3%A9.png") == IMAGE + b"!"


async def test_without_roots_no_file_is_read(root: Path) -> None:
    assert (await refusal(f"file://{root}/a.png"))[0] == "media_url_not_allowed"


async def test_outside_what_is_there_and_what_is_not_read_the_same(root: Path) -> None:
    there = await refusal(f"file://{root.parent}/secret.png", root)
    nothing = await refusal(f"file://{root.parent}/nothing.png", root)
    assert there == nothing
    assert there[0] == "media_url_not_allowed"
    assert str(root.parent) not in there[1]


@pytest.mark.parametrize(
    "path",
    [
        *("/../secret.png", "/deep/../../secret.png", "/%2e%2e/secret.png", "/..%2fsecret.png", "/./a.png", "//a.png"),
        *("", "/", "/a.png/", "s/a.png", "/a.png?x", "/a.png#x", "/a%00.png"),
    ],
)
async def test_a_path_is_what_it_says_and_no_part_of_it_is_resolved(root: Path, path: str) -> None:
    assert (await refusal(f"file://{root}{path}", root))[0] == "media_url_not_allowed"


@pytest.mark.parametrize("seed", range(3))
async def test_no_path_that_can_be_made_up_leads_out(root: Path, seed: int) -> None:
    rng = random.Random(seed)
    (root / "out").symlink_to(root.parent)
    (root / "deep" / "out").symlink_to("/")
    names = [
        "..",
        "%2e%2e",
        ".",
        "",
        "%2f",
        "deep",
        "out",
        "a.png",
        "secret.png",
        "pictures",
        "%00",
        "\\",
        *root.parts[1:],
    ]
    async with files(root) as fetcher:
        for _ in range(300):
            path = "/".join(rng.choices(names, k=rng.randrange(1, 9)))
            try:
                data = await fetcher.fetch(f"file://{rng.choice([root, root.parent, ''])}/{path}")
            except InvalidMedia:
                continue
            assert data.startswith(IMAGE), path


@pytest.mark.parametrize("url", ["file:a.png", "file:", "file://", "file://other.example/a.png", "file://[x/a.png"])
async def test_other_file_urls_are_refused(root: Path, url: str) -> None:
    assert (await refusal(url, root))[0] in ("media_url_not_allowed", "invalid_image_url")


async def test_links_are_not_followed_wherever_they_stand_or_lead(root: Path) -> None:
    (root / "out.png").symlink_to(root.parent / "secret.png")
    (root / "dangling.png").symlink_to(root.parent / "nothing.png")
    (root / "in.png").symlink_to(root / "a.png")
    (root / "up").symlink_to(root.parent)
    told = {
        await refusal(f"file://{root}/{name}", root) for name in ("out.png", "dangling.png", "in.png", "up/secret.png")
    }
    assert told == {await refusal(f"file://{root}/nothing.png", root)}


async def test_only_regular_files_are_read_and_nobody_waits_for_a_pipe(root: Path) -> None:
    os.mkfifo(root / "pipe.png")
    told = {await refusal(f"file://{root}/{name}", root) for name in ("pipe.png", "deep", "a.png/x", "nothing.png")}
    assert len(told) == 1


async def test_a_file_over_the_cap_is_not_read(root: Path) -> None:
    async with files(root, max_image_bytes=len(IMAGE)) as fetcher:
        assert await fetcher.fetch(f"file://{root}/a.png") == IMAGE
    async with files(root, max_image_bytes=len(IMAGE) - 1) as fetcher:
        with pytest.raises(MediaTooLarge):
            await fetcher.fetch(f"file://{root}/a.png")
    async with files("/dev", max_image_bytes=10) as fetcher:
        with pytest.raises(InvalidMedia):  # no regular file, however much it holds
            await fetcher.fetch("file:///dev/zero")


async def test_a_file_that_tells_no_size_is_still_capped() -> None:
    async with files("/proc/self", max_image_bytes=10) as fetcher:
        with pytest.raises(MediaTooLarge):
            await fetcher.fetch("file:///proc/self/status")


async def test_a_root_that_is_swapped_later_stays_the_folder_it_was(root: Path) -> None:
    async with files(root) as fetcher:
        root.rename(root.parent / "moved")
        root.symlink_to(root.parent)
        assert await fetcher.fetch(f"file://{root}/a.png") == IMAGE
        with pytest.raises(InvalidMedia):
            await fetcher.fetch(f"file://{root}/secret.png")


async def test_the_innermost_root_decides(root: Path) -> None:
    async with files(root, root / "deep") as fetcher:
        assert await fetcher.fetch(f"file://{root}/a.png") == IMAGE
        assert await fetcher.fetch(f"file://{root}/deep/with space é.png") == IMAGE + b"!"


@pytest.mark.parametrize("name", ["relative", "/no/such/folder", "/etc/passwd", "/tmp/../etc"])
def test_a_root_that_is_no_folder_is_refused_at_start(name: str) -> None:
    with pytest.raises(ConfigError, match="media_roots"):
        FileMedia(RouterSettings(media_roots=(name,)))


async def test_no_descriptor_is_left_open(root: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    reader = FileMedia(RouterSettings(media_roots=(str(root),)))
    for name in ("a.png", "deep", "nothing.png", "deep/with space é.png", "deep/nothing.png"):
        try:
            await reader.read(f"file://{root}/{name}")
        except InvalidMedia:
            pass
    reader.close()
    assert set(os.listdir("/proc/self/fd")) <= before
