"""What is asked of the GPU's JPEG decoder, shown on the CPU's own: torchvision's interface is one for both."""

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from tests.engine_encoder.rig import item_of
from triptych.errors import ConfigError, InvalidMedia
from triptych.models.card import ModelCard
from triptych.multimodal.canonical import to_rgb
from triptych.multimodal.sniff import sniff
from triptych.services.encoder.gpu_jpeg import GpuJpeg, choose_gpu_jpeg, is_plain, upright
from triptych.services.encoder.prepare import Preparer

CPU = torch.device("cpu")


def photo(seed: int, width: int = 90, height: int = 60) -> Image.Image:
    """Smooth in colour, as photographs are."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def jpeg(image: Image.Image, orientation: int = 1, **options: object) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    image.save(file, "JPEG", **{"exif": exif, "quality": 95} | options)
    return file.getvalue()


@pytest.fixture(scope="module")
def decoder() -> GpuJpeg:
    found = GpuJpeg.probe(CPU)
    assert found is not None
    return found


@pytest.mark.parametrize("orientation", range(1, 9))
def test_planes_are_turned_as_pictures_are(decoder: GpuJpeg, orientation: int) -> None:
    data = jpeg(photo(1), orientation)
    header = sniff(data)
    with decoder.stream():
        planes = decoder.decode(data, header)
    assert planes is not None
    assert planes.shape == (3, header.height, header.width)
    assert np.abs(planes.permute(1, 2, 0).numpy().astype(int) - to_rgb(data).astype(int)).mean() <= 0.5
    exact = torch.from_numpy(to_rgb(jpeg(photo(1)))).permute(2, 0, 1)
    assert torch.equal(upright(exact, orientation), torch.from_numpy(to_rgb(data)).permute(2, 0, 1))


@pytest.mark.parametrize(
    ("data", "plain"),
    [
        (jpeg(photo(1)), True),
        (jpeg(photo(1), progressive=True), True),
        (jpeg(photo(1).convert("L")), True),
        (jpeg(photo(1).convert("CMYK")), False),
        (jpeg(photo(1), keep_rgb=True), False),
    ],
    ids=["baseline", "progressive", "grey", "cmyk", "rgb"],
)
def test_only_plain_files_are_decoded_there(decoder: GpuJpeg, data: bytes, plain: bool) -> None:
    assert is_plain(data) is plain
    assert (decoder.decode(data, sniff(data)) is not None) is plain


def test_arithmetic_coding_is_left_to_the_cpu() -> None:
    data = jpeg(photo(1))
    assert not is_plain(data.replace(b"\xff\xc0", b"\xff\xc9", 1))


def test_what_is_no_jpeg_or_broken_is_left_to_the_cpu(decoder: GpuJpeg) -> None:
    file = io.BytesIO()
    photo(1).save(file, "PNG")
    data = jpeg(photo(1))
    assert decoder.decode(file.getvalue(), sniff(file.getvalue())) is None
    assert decoder.decode(data[:-300], sniff(data)) is None
    assert decoder.decode(data, sniff(jpeg(photo(1, 91, 60)))) is None


def test_pixels_are_nearly_those_of_the_cpu_and_so_are_errors(
    card: ModelCard, prepare: Preparer, decoder: GpuJpeg
) -> None:
    with_decoder = Preparer(card, decoder)
    for orientation in (1, 6):
        data = jpeg(photo(2, 300, 200), orientation)
        item = item_of(card, data)
        expected, found = prepare(data, item), with_decoder(data, item)
        assert (found.grid, found.rows) == (expected.grid, expected.rows)
        apart = (found.pixels.int() - expected.pixels.int()).abs()
        assert apart.float().mean().item() <= 0.5
    with pytest.raises(InvalidMedia, match="truncated") as caught:
        with_decoder(data[:-300], item_of(card, data, index=3))
    assert caught.value.item_index == 3


def test_files_left_to_the_cpu_have_its_very_pixels(card: ModelCard, prepare: Preparer, decoder: GpuJpeg) -> None:
    data = jpeg(photo(3).convert("CMYK"))
    item = item_of(card, data)
    assert torch.equal(Preparer(card, decoder)(data, item).pixels, prepare(data, item).pixels)


def test_threads_may_decode_at_once(card: ModelCard, decoder: GpuJpeg) -> None:
    prepare = Preparer(card, decoder)
    files = [jpeg(photo(seed)) for seed in range(16)]
    alone = [prepare(data, item_of(card, data)).pixels for data in files]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda data: prepare(data, item_of(card, data)).pixels, files))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_it_is_chosen_only_where_rounding_does_not_show() -> None:
    for setting in ("auto", "off"):
        assert choose_gpu_jpeg(setting, CPU, torch.bfloat16) is None
    assert choose_gpu_jpeg("auto", torch.device("cuda"), torch.float32) is None
    with pytest.raises(ConfigError, match=r"encoder.gpu_jpeg is on.*no JPEG on cpu"):
        choose_gpu_jpeg("on", CPU, torch.float32)
