"""AVIF: size and orientation from its boxes, as the decoder sees them, and its picture on white."""

import random
from io import BytesIO

import numpy as np
import pytest
from PIL import AvifImagePlugin, Image

from tests.multimodal.images import CORNERS, HEIGHT, WIDTH, exif, quadrants, saved
from triptych.errors import InvalidMedia
from triptych.multimodal import canonical
from triptych.multimodal.canonical import to_rgb
from triptych.multimodal.sniff import sniff

pytestmark = pytest.mark.skipif(not AvifImagePlugin.SUPPORTED, reason="this Pillow has no AVIF")
LOSSY = 12


def avif(orientation: int = 1, **options: object) -> bytes:
    return saved(quadrants(), "AVIF", exif=exif(orientation), quality=95, **options)


def turned(quarters: int, axis: int) -> bytes:
    """By a rotation and a mirror that no EXIF has led to."""
    data = bytearray(avif(5))
    for kind, value in ((b"irot", quarters), (b"imir", axis)):
        data[data.index(kind) + 4] = value
    return bytes(data)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_size_and_orientation_are_what_the_decoder_reads(orientation: int) -> None:
    header = sniff(avif(orientation))
    assert header.format == "avif"
    assert (header.raw_width, header.raw_height, header.orientation) == (WIDTH, HEIGHT, orientation)
    assert (header.width, header.height) == ((HEIGHT, WIDTH) if orientation > 4 else (WIDTH, HEIGHT))
    upright = to_rgb(avif(1))
    stored = Image.fromarray(upright)
    seen = stored.transpose(canonical._TRANSPOSE[orientation]) if orientation > 1 else stored
    assert np.array_equal(to_rgb(avif(orientation)), np.asarray(seen))


@pytest.mark.parametrize("quarters", range(4))
@pytest.mark.parametrize("axis", range(2))
def test_rotation_and_mirror_together_are_one_orientation(quarters: int, axis: int) -> None:
    data = turned(quarters, axis)
    with Image.open(BytesIO(data)) as image:
        assert sniff(data).orientation == image.getexif().get(274, 1)


def test_its_colours_stand_where_they_belong() -> None:
    pixels = to_rgb(avif(subsampling="4:4:4"))
    for number, colour in enumerate(CORNERS):
        y, x = HEIGHT // 4 + number // 2 * (HEIGHT // 2), WIDTH // 4 + number % 2 * (WIDTH // 2)
        assert np.abs(pixels[y, x].astype(int) - colour).max() <= LOSSY


def test_what_is_transparent_is_white() -> None:
    pixels = to_rgb(saved(Image.new("RGBA", (16, 16), (255, 0, 0, 0)), "AVIF"))
    assert pixels.min() >= 255 - LOSSY


def test_a_file_of_the_family_that_names_avif_among_others_is_one() -> None:
    data = avif()
    assert sniff(data.replace(b"ftypavif", b"ftypmif1", 1)) == sniff(data)


def test_sequences_are_refused_by_name() -> None:
    frames = [quadrants(), quadrants().rotate(180)]
    data = saved(frames[0], "AVIF", save_all=True, append_images=frames[1:])
    with pytest.raises(InvalidMedia, match="several frames") as caught:
        sniff(data)
    assert caught.value.media_code == "unsupported_image_format"


def test_pixels_stored_in_another_size_than_is_told_are_scaled_to_that_as_the_decoder_does() -> None:
    data = bytearray(avif())
    at = data.index(b"ispe") + 8
    data[at : at + 4] = (WIDTH * 2).to_bytes(4, "big")
    assert to_rgb(bytes(data)).shape == (HEIGHT, WIDTH * 2, 3)


def test_half_a_file_is_refused_wherever_it_is_cut() -> None:
    data = avif()
    for end in range(12, len(data), 7):
        with pytest.raises(InvalidMedia):
            to_rgb(data[:end])


@pytest.mark.parametrize("seed", range(4))
def test_no_bytes_make_its_reader_do_more_than_refuse(seed: int) -> None:
    rng, sound = random.Random(seed), avif(6)
    for _ in range(1000):
        data = bytearray(sound)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(4, 400)] = rng.choice((0, 1, 2, 255, rng.randrange(256)))
        try:
            header = sniff(bytes(data))
        except InvalidMedia:
            continue
        assert min(header.width, header.height) > 0


def test_a_pillow_that_knows_none_says_what_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    data = avif()
    monkeypatch.setattr(AvifImagePlugin, "SUPPORTED", False)
    with pytest.raises(InvalidMedia, match="send JPEG, PNG or WebP") as caught:
        to_rgb(data)
    assert caught.value.media_code == "unsupported_image_format"
