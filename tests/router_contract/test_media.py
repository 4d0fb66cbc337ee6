"""Cases P15 to P28 of the contract: images that are good, bad, elsewhere, and none of our business."""

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.journey.messages import data_uri, image
from tests.router import serving as loopback
from tests.router_contract.errors import error_of
from tests.served import PICTURES, PictureSite, Served, shown
from triptych.models.card import ModelCard

URL = "messages[0].content[0].image_url.url"
COLOUR = "What colour is the shape?"


def at(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def encoded(picture: Image.Image, kind: str) -> dict[str, Any]:
    out = io.BytesIO()
    picture.save(out, kind)
    return image(out.getvalue(), kind.lower())


def jpeg() -> bytes:
    out = io.BytesIO()
    Image.open(PICTURES / "red-circle.png").convert("RGB").save(out, "JPEG")
    return out.getvalue()


def test_P15_an_image_url_as_a_string_is_refused(served: Served) -> None:
    part = {"type": "image_url", "image_url": data_uri((PICTURES / "red-circle.png").read_bytes())}
    assert error_of(served.chat(part, COLOUR))["param"] == "messages[0].content[0].image_url"


@pytest.mark.parametrize("url", ["malformed", "", "/9j/4AAQ", "http://", "ftp://example.com/a.png", "http:///a.png"])
def test_P16_what_is_no_url_is_refused(served: Served, url: str) -> None:
    assert error_of(served.chat(at(url), COLOUR))["param"] == URL


def test_P17_a_url_that_leads_nowhere_is_the_callers_fault(served: Served, site: PictureSite) -> None:
    error = error_of(served.chat(shown(), at(f"{site.url}/missing.png"), COLOUR))
    assert error["param"] == "messages[0].content[1].image_url.url"
    assert error["code"] == "image_fetch_failed"


def test_P18_a_page_is_no_image(served: Served, site: PictureSite) -> None:
    error = error_of(served.chat(at(f"{site.url}/page.png"), COLOUR))
    assert (error["param"], error["code"]) == (URL, "unsupported_image_format")


@pytest.mark.parametrize("data", [bytes(range(256)), b"garbage", b"\xff\xd8\xff" + b"z" * 300])
def test_P19_garbage_is_no_image(served: Served, data: bytes) -> None:
    assert error_of(served.chat(image(data), COLOUR))["param"] == URL


def test_P20_nothing_is_no_image(served: Served) -> None:
    assert error_of(served.chat(image(b""), COLOUR))["param"] == URL


def test_P21_half_a_jpeg_is_refused_and_the_server_lives(served: Served) -> None:
    whole = jpeg()
    for stream in (False, True):
        error = error_of(served.chat(image(whole[: len(whole) // 2], "jpeg"), COLOUR, stream=stream))
        assert (error["param"], error["code"]) == (URL, "invalid_image")
    assert served.text(image(whole, "jpeg"), COLOUR) == "red"
    assert served.http.get("/health").status_code == 200


@pytest.mark.parametrize("url", ["data:image/png;base64", "data:image/png;base64;AAAA", "data:"])
def test_P22_a_data_uri_without_a_comma_is_refused(served: Served, url: str) -> None:
    assert error_of(served.chat(at(url), COLOUR))["param"] == URL


@pytest.mark.parametrize("url", ["data:text/plain,hello", "data:,hello", "data:image/png,hello"])
def test_P23_a_data_uri_of_text_is_refused(served: Served, url: str) -> None:
    assert error_of(served.chat(at(url), COLOUR))["param"] == URL


@pytest.mark.parametrize("padding", ["AAA", "AA=A", "A-_A", "AA$A"])
def test_P23_base64_that_is_not_strict_is_refused(served: Served, padding: str) -> None:
    data = base64.b64encode((PICTURES / "red-circle.png").read_bytes()[:300]).decode()
    assert error_of(served.chat(at(f"data:image/png;base64,{data}{padding}"), COLOUR))["param"] == URL


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_P24_each_format_is_read(served: Served, kind: str) -> None:
    picture = Image.open(PICTURES / "red-circle.png").convert("RGB")
    assert served.text(encoded(picture, kind), COLOUR) == "red"


def test_P25_what_is_transparent_lies_on_white(served: Served) -> None:
    """A colour probe: the pixels under no alpha are red, and are not to be seen."""
    size = (84, 84)
    clear = encoded(Image.new("RGBA", size, (255, 0, 0, 0)), "PNG")
    white, red = (encoded(Image.new("RGB", size, colour), "PNG") for colour in ("white", "red"))
    fields = {"logprobs": True, "top_logprobs": 5}
    told = [served.answer(part, COLOUR, **fields)["choices"][0] for part in (clear, white, red)]
    assert told[0] == told[1]
    assert told[0]["logprobs"] != told[2]["logprobs"]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "file://localhost/etc/passwd", "file:relative.png"])
def test_P26_a_file_is_refused_and_nothing_is_said_about_it(served: Served, url: str, tmp_path: Path) -> None:
    there = tmp_path / "red-circle.png"
    there.write_bytes((PICTURES / "red-circle.png").read_bytes())
    messages = {error_of(served.chat(at(path), COLOUR))["message"] for path in (url, there.as_uri(), "file:///none")}
    assert len(messages) <= 2
    assert not any(str(tmp_path) in message for message in messages)


@pytest.mark.anyio
async def test_P27_a_host_off_the_list_is_refused_unvisited(card: ModelCard, site: PictureSite) -> None:
    before = site.hits.total()
    policy: dict[str, Any] = {"allow_media_hosts": ("images.example",), "allow_media_cidrs": ("127.0.0.0/8",)}
    async with loopback.serving(card, loopback.tiers(card, "epd"), **policy) as served:
        error = error_of(await served.chat([at(f"{site.url}/red-circle.png")], max_tokens=2))
        assert (error["param"], error["code"]) == (URL, "media_url_not_allowed")
        assert (await served.chat([loopback.picture()], max_tokens=2)).status_code == 200
    assert site.hits.total() == before


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_P28_loopback_is_refused_unvisited_until_it_is_opened(
    card: ModelCard, site: PictureSite, stream: bool
) -> None:
    part = at(f"{site.url}/red-circle.png")
    before = site.hits.total()
    async with loopback.serving(card, loopback.tiers(card, "epd")) as served:
        error = error_of(await served.chat([part], max_tokens=2, stream=stream))
        assert error["code"] == "media_url_not_allowed"
        assert "127" not in error["message"]
    assert site.hits.total() == before
    async with loopback.serving(card, loopback.tiers(card, "epd"), allow_media_cidrs=("127.0.0.0/8",)) as served:
        assert (await served.chat([part], max_tokens=2, stream=stream)).status_code == 200
    assert site.hits.total() == before + 1
