"""data: URIs: strict about everything but line breaks."""

import base64
import random

import pytest

from triptych.errors import InvalidMedia, MediaTooLarge
from triptych.router.media import data_uri
from triptych.router.media.data_uri import is_data_uri, read_data_uri

pytestmark = pytest.mark.anyio
MOST = 1 << 24


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def read(url: str, most: int = MOST) -> bytes:
    return await read_data_uri(url, most)


async def refusal(url: str, most: int = MOST) -> InvalidMedia:
    with pytest.raises(InvalidMedia) as caught:
        await read(url, most)
    return caught.value


@pytest.mark.parametrize("size", [0, 1, 2, 3, 100, 786_431, 786_432, 786_433, 3 << 20])
async def test_bytes_come_back_as_they_were(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert await read("data:image/png;base64," + encoded(data)) == data


@pytest.mark.parametrize(
    "header", ["data:image/jpeg;base64,", "DATA:Image/PNG;BASE64,", "data:image/png;name=a.png;charset=x;base64,"]
)
async def test_case_and_parameters_do_not_matter(header: str) -> None:
    assert is_data_uri(header)
    assert await read(header + encoded(b"hello")) == b"hello"


async def test_white_space_is_stripped() -> None:
    data = bytes(range(256)) * 5000
    text = encoded(data)
    broken = "\r\n".join(text[at : at + 76] for at in range(0, len(text), 76))
    assert await read("data:image/png;base64, \t" + broken + "\n") == data


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64",  # no comma
        "data:,hello",
        "data:text/plain,hello",
        "data:text/plain;base64,aGVsbG8=",
        "data:image/png,rawbytes",
        "data:image/png;base64x,aGVsbG8=",
        "data:image/png;base64,aGVsbG8",  # no padding
        "data:image/png;base64,aGVsbG8==",
        "data:image/png;base64,aGVs*G8=",
        "data:image/png;base64,aGVs-_8=",  # the alphabet of URLs
        "data:image/png;base64,aGVs%2BG8=",
        "data:image/png;base64,====",
        "data:image/png;base64,aGVsbG8=aGVs",
        "data:image/png;base64,aGVsbÄ8=",
    ],
)
async def test_anything_else_is_refused(url: str) -> None:
    error = await refusal(url)
    assert error.media_code == "invalid_image_url"
    assert error.http_status == 400


async def test_padding_in_the_middle_of_a_large_one_is_refused() -> None:
    block = "A" * ((1 << 20) - 2) + "=="
    await refusal("data:image/png;base64," + block + "A" * 400)


async def test_size_counts_in_decoded_bytes() -> None:
    assert len(await read("data:image/png;base64," + encoded(bytes(1000)), most=1000)) == 1000
    with pytest.raises(MediaTooLarge) as caught:
        await read("data:image/png;base64," + encoded(bytes(1001)), most=1000)
    assert caught.value.http_status == 413


@pytest.mark.parametrize("seed", range(20))
async def test_garbage_never_raises_anything_else(seed: int) -> None:
    rng = random.Random(seed)
    alphabet = "data:image/;base64,= \nAZaz09+é"
    for _ in range(200):
        url = "data:" + "".join(rng.choices(alphabet, k=rng.randrange(60)))
        try:
            await read(url)
        except InvalidMedia:
            pass


@pytest.mark.parametrize("seed", range(8))
async def test_the_fast_decoder_never_takes_what_the_strict_one_refuses(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With it and without it: the same bytes, or no bytes at all."""
    rng = random.Random(seed)
    for _ in range(300):
        text = list(encoded(rng.randbytes(rng.randrange(40))))
        for _ in range(rng.randrange(3)):
            text.insert(rng.randrange(len(text) + 1), rng.choice("=+/-_ \nAé"))
        url = "data:image/png;base64," + "".join(text)
        with monkeypatch.context() as without:
            without.setattr(data_uri, "pybase64", None)
            slow = await _outcome(url)
        assert await _outcome(url) == slow, url


async def _outcome(url: str) -> bytes | str:
    try:
        return await read(url)
    except InvalidMedia as error:
        return error.message
