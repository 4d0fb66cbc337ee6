"""How a JPEG's samples are coded, as told by headers that Pillow writes and by ones made by hand."""

import io

import numpy as np
import pytest
from PIL import Image

from triptych.errors import InvalidMedia
from triptych.multimodal.jpeg import Coding, coding


def jpeg(mode: str = "RGB", **options: object) -> bytes:
    pixels = np.random.default_rng(1).integers(0, 256, (24, 40, 4), dtype=np.uint8)
    image = Image.fromarray(pixels[..., :3]) if mode != "CMYK" else Image.frombytes("CMYK", (40, 24), pixels.tobytes())
    file = io.BytesIO()
    image.convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def with_adobe(data: bytes, transform: int) -> bytes:
    segment = b"Adobe" + bytes([0, 100, 0, 0, 0, 0, transform])
    return data[:2] + b"\xff\xee" + (len(segment) + 2).to_bytes(2, "big") + segment + data[2:]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (jpeg(), Coding(0xC0, 8, (1, 2, 3), None)),
        (jpeg(progressive=True), Coding(0xC2, 8, (1, 2, 3), None)),
        (jpeg("L"), Coding(0xC0, 8, (1,), None)),
        (jpeg("CMYK"), Coding(0xC0, 8, (67, 77, 89, 75), 0)),
        (with_adobe(jpeg(), 1), Coding(0xC0, 8, (1, 2, 3), 1)),
        (with_adobe(jpeg(), 0), Coding(0xC0, 8, (1, 2, 3), 0)),
        (jpeg(keep_rgb=True), Coding(0xC0, 8, (82, 71, 66), 0)),
    ],
    ids=["baseline", "progressive", "grey", "cmyk", "adobe ycbcr", "adobe rgb", "rgb ids"],
)
def test_the_coding_is_told_by_the_headers(data: bytes, expected: Coding) -> None:
    assert coding(data) == expected


@pytest.mark.parametrize("length", [4, 30, 200])
def test_a_file_without_whole_headers_is_refused(length: int) -> None:
    with pytest.raises(InvalidMedia):
        coding(jpeg()[:length])
