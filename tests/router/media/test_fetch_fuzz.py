"""Whatever a URL says, and whatever a server answers, the client gets bytes or an error of its own making."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from tests.router.origin import Visit, origin
from triptych.config import RouterSettings
from triptych.errors import InvalidMedia, MediaTooLarge
from triptych.router.edge.budget import ByteBudget
from triptych.router.media.fetch import MediaFetcher
from triptych.router.media.urls import MediaURLs

pytestmark = pytest.mark.anyio

_PIECES = (
    *("http://", "https://", "HTTP:", "//", "/", "\\", "@", ":", "[", "]", "::1", "%", "%25eth0", "%00", "#", "?", "."),
    *(
        "a",
        "example.com",
        "xn--",
        "xn--a",
        "ß",
        "。",
        "\u202e",
        "\ud800",
        "\0",
        " ",
        "\t",
        "\n",
        "\r\n",
        "127.1",
        "0x7f",
    ),
    *(":0", ":80", ":99999", ":-1", ":8e1", "user:pw@", "localhost", "..", "%2e%2e", "é", "\U0001f600", "&", "=", "|"),
)
_GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nCache-Control: max-age=9\r\nETag: x\r\n\r\nhello"
_SNIPPETS = (
    *(b"\r\n", b"\n", b"\0", b" ", b":", b",", b"HTTP/9.9", b"99999", b"-1", b"\xff\xfe", b"Content-Length: 1\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"Location: http://[\r\n", b"Vary: *\r\n"),
    *(
        b"Location: \xff\r\n",
        b"Location: /a\r\n",
        b"301",
        b"304",
        b"100",
        b"101",
        b"204",
        b"Age: x\r\n",
        b"Expires: 0\r\n",
    ),
    *(
        b"Content-Encoding: br\r\n",
        b"Cache-Control: max-age=\xff\r\n",
        b"Date: Mon, 99 Foo\r\n",
        b"ffffffffffffffff\r\n",
    ),
)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("proxy", ["", "http://127.0.0.1:9"])
def test_no_url_is_more_than_refused(seed: int, proxy: str) -> None:
    rng = random.Random(seed)
    urls = MediaURLs(RouterSettings(media_proxy=proxy, allow_media_hosts=("example.com",) if seed % 2 else ()))
    for _ in range(1000):
        url = rng.choice(("http://", "https://", "")) + "".join(rng.choices(_PIECES, k=rng.randrange(8)))
        try:
            urls.check(url)
        except InvalidMedia:
            pass


@pytest.mark.parametrize("seed", range(3))
async def test_no_url_fetches_anything_from_inside(seed: int) -> None:
    rng = random.Random(seed)
    settings = RouterSettings(fetch_timeout_seconds=0.5, allow_media_hosts=("localhost", "127.1", "127.0.0.1"))
    fetcher = MediaFetcher(settings)
    hosts = ("localhost", "127.1", "127.0.0.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]")
    try:
        for _ in range(100):
            tail = "".join(rng.choices(_PIECES, k=rng.randrange(5)))
            with pytest.raises(InvalidMedia):
                await fetcher.fetch(f"http://{rng.choice(hosts)}{tail}")
    finally:
        await fetcher.close()


@pytest.mark.parametrize("seed", range(4))
async def test_no_answer_of_a_server_is_more_than_a_failed_fetch(seed: int) -> None:
    rng = random.Random(seed)
    answer = b""

    async def say(visit: Visit, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    settings = RouterSettings(
        allow_media_cidrs=("127.0.0.0/8",), fetch_timeout_seconds=0.5, max_image_bytes=100, media_cache_bytes=1 << 20
    )
    budget = ByteBudget(1 << 20)
    fetcher = MediaFetcher(settings, budget=budget)
    async with origin(say) as server:
        try:
            for _ in range(300):
                answer = _spoilt(_GOOD, rng)
                try:
                    assert len(await fetcher.fetch(server.url(f"/{rng.randrange(200)}"))) <= 100
                except (InvalidMedia, MediaTooLarge):
                    pass
                assert budget.held_bytes == 0
        finally:
            await fetcher.close()


def _spoilt(answer: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randrange(1, 4)):
        begin, end = sorted(rng.randrange(len(answer) + 1) for _ in range(2))
        middle: Sequence[bytes] = (b"", rng.choice(_SNIPPETS), rng.randbytes(3), answer[begin:end] * 2)
        answer = answer[:begin] + rng.choice(middle) + answer[rng.choice((begin, end)) :]
    return answer
