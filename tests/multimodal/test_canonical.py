import dataclasses
import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

from tests.multimodal.images import (
    CORNERS,
    HEIGHT,
    ORIENTED,
    PNG_MAGIC,
    WIDTH,
    Pixels,
    animated,
    chunk,
    exif,
    jpeg_with_segments,
    jpeg_xmp_payload,
    noise,
    png,
    quadrants,
    saved,
    text_chunk,
    tiff,
    unfiltered,
    with_late_chunks,
    xmp,
)
from triptych.errors import InternalError, InvalidMedia
from triptych.multimodal.canonical import MAX_UNANNOUNCED_PIXELS, to_rgb
from triptych.multimodal.sniff import sniff

LOSSY = 12  # how far a lossy coder may move a flat colour
WHITE = (255, 255, 255)


def _probe(pixels: Pixels, tolerance: int = 0) -> None:
    """The quadrants' colours stand where they belong."""
    height, width, _ = pixels.shape
    for number, colour in enumerate(CORNERS):
        y, x = height // 4 + number // 2 * (height // 2), width // 4 + number % 2 * (width // 2)
        assert np.abs(pixels[y, x].astype(int) - colour).max() <= tolerance, (number, pixels[y, x], colour)


def _flat(colour: tuple[int, ...] | int, mode: str, kind: str = "PNG", **options: object) -> Pixels:
    return to_rgb(saved(Image.new(mode, (8, 8), colour), kind, **options))


@pytest.mark.parametrize(
    ("kind", "options", "tolerance"),
    [
        ("PNG", {}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("WEBP", {"quality": 95}, LOSSY),
        ("JPEG", {"quality": 95}, LOSSY),
        ("JPEG", {"quality": 95, "progressive": True}, LOSSY),
        ("JPEG", {"quality": 95, "subsampling": 0, "optimize": True}, LOSSY),
    ],
)
def test_rgb_keeps_its_colours(kind: str, options: dict[str, object], tolerance: int) -> None:
    pixels = to_rgb(saved(quadrants(), kind, **options))
    assert pixels.shape == (HEIGHT, WIDTH, 3)
    assert pixels.dtype == np.uint8
    _probe(pixels, tolerance)


def test_pixels_are_contiguous_and_the_callers_own() -> None:
    pixels = to_rgb(saved(quadrants(), "JPEG", exif=exif(6)))
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    assert pixels.flags.owndata or pixels.base is None


def test_grey_and_one_bit_become_equal_channels() -> None:
    assert (_flat(77, "L") == 77).all()
    assert (_flat(1, "1") == 255).all()
    assert (_flat(0, "1") == 0).all()
    assert np.abs(_flat(77, "L", "JPEG").astype(int) - 77).max() <= 2


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_shallow_greys_are_spread_over_the_whole_range(depth: int) -> None:
    top = (1 << depth) - 1
    bits = [0, top] * 8  # 16 samples a row
    packed = sum(value << (depth * (15 - place)) for place, value in enumerate(bits))
    row = b"\x00" + packed.to_bytes(2 * depth, "big")
    assert to_rgb(png(16, 1, depth, 0, row))[0, :, 1].tolist() == [0, 255] * 8


@pytest.mark.parametrize("alpha", [0, 1, 100, 128, 254, 255])
def test_transparency_is_laid_on_white(alpha: int) -> None:
    for colour in ((10, 200, 30, alpha), (0, 0, 0, alpha)):
        expected = [round((value * alpha + 255 * (255 - alpha)) / 255) for value in colour[:3]]
        assert (_flat(colour, "RGBA") == expected).all()
        assert (_flat(colour, "RGBA", "WEBP", lossless=True, exact=True) == expected).all()
    assert (_flat((40, alpha), "LA") == round((40 * alpha + 255 * (255 - alpha)) / 255)).all()


def test_a_palette_with_one_transparent_entry_shows_white_there() -> None:
    image = quadrants().quantize(4)
    entry = image.getpixel((WIDTH - 1, HEIGHT - 1))
    for kind in ("PNG", "GIF"):
        pixels = to_rgb(saved(image, kind, transparency=entry))
        assert pixels[-1, -1].tolist() == [255, 255, 255]
        assert np.abs(pixels[0, 0].astype(int) - CORNERS[0]).max() <= 2


def test_a_palette_with_half_transparent_entries_is_blended() -> None:
    image = Image.new("P", (4, 1))
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    image.putdata([0, 1, 2, 1])
    pixels = to_rgb(saved(image, "PNG", transparency=bytes([128, 0, 255])))
    assert pixels[0].tolist() == [[127] * 3, [255] * 3, [0, 255, 0], [255] * 3]


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_a_transparent_grey_is_compared_at_the_depth_of_the_file(depth: int) -> None:
    key = (1 << depth) - 1
    other = key - 1
    packed = sum([key, other][place % 2] << (depth * (15 - place)) for place in range(16))
    row = b"\x00" + packed.to_bytes(2 * depth, "big")
    pixels = to_rgb(png(16, 1, depth, 0, row, before=chunk(b"tRNS", struct.pack(">H", key))))
    assert pixels[0, :, 0].tolist() == [255, other * 255 // key] * 8


def test_a_transparent_grey_of_16_bits_is_compared_exactly() -> None:
    samples = np.array([[30000, 30001, 0, 65535]], dtype=np.uint16)
    pixels = to_rgb(png(4, 1, 16, 0, unfiltered(samples), before=chunk(b"tRNS", struct.pack(">H", 30000))))
    assert pixels[0, :, 0].tolist() == [255, 117, 0, 255]


def test_a_transparent_rgb_colour_becomes_white() -> None:
    samples = np.array([[[1, 2, 3], [1, 2, 4]]], dtype=np.uint8)
    key = chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3))
    assert to_rgb(png(2, 1, 8, 2, unfiltered(samples), before=key))[0].tolist() == [[255] * 3, [1, 2, 4]]
    deep = samples.astype(np.uint16) * 257
    key = chunk(b"tRNS", struct.pack(">HHH", 257, 514, 771))
    assert to_rgb(png(2, 1, 16, 2, unfiltered(deep), before=key))[0].tolist() == [[255] * 3, [1, 2, 4]]


@pytest.mark.parametrize(("colour", "channels"), [(0, 1), (2, 3)])
def test_16_bits_become_their_high_byte(colour: int, channels: int) -> None:
    values = np.array([0, 255, 256, 1000, 30000, 65279, 65535], dtype=np.uint16)
    samples = np.repeat(values[None, :, None], channels, axis=2)
    pixels = to_rgb(png(len(values), 1, 16, colour, unfiltered(samples)))
    assert pixels[0, :, 0].tolist() == [0, 0, 1, 3, 117, 254, 255]
    assert (pixels == pixels[..., :1]).all()


@pytest.mark.parametrize(("colour", "channels"), [(4, 2), (6, 4)])
def test_16_bits_with_alpha_are_laid_on_white(colour: int, channels: int) -> None:
    samples = np.full((1, 2, channels), 30000, dtype=np.uint16)
    samples[0, :, -1] = (65535, 0)
    assert to_rgb(png(2, 1, 16, colour, unfiltered(samples)))[0].tolist() == [[117] * 3, [255] * 3]


def test_a_16_bit_grey_saved_by_pillow_is_scaled_and_not_clipped() -> None:
    ramp = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    assert (to_rgb(saved(Image.fromarray(ramp), "PNG"))[..., 0] == ramp >> 8).all()


@pytest.mark.parametrize(
    ("ink", "colour"),
    [
        ((0, 0, 0, 0), (255, 255, 255)),
        ((0, 0, 0, 255), (0, 0, 0)),
        ((255, 0, 0, 0), (0, 255, 255)),
        ((0, 255, 0, 0), (255, 0, 255)),
        ((0, 0, 255, 0), (255, 255, 0)),
        ((0, 0, 0, 128), (127, 127, 127)),
    ],
)
def test_cmyk_is_read_the_way_adobe_writes_it(ink: tuple[int, ...], colour: tuple[int, ...]) -> None:
    data = saved(Image.new("CMYK", (16, 16), ink), "JPEG", quality=100)
    assert b"Adobe" in data
    assert np.abs(to_rgb(data)[8, 8].astype(int) - colour).max() <= 2


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF"])
def test_the_first_frame_of_an_animation_counts(kind: str) -> None:
    _probe(to_rgb(animated(kind, **({"lossless": True} if kind == "WEBP" else {}))), tolerance=2)


def test_the_default_image_of_an_animated_png_counts() -> None:
    _probe(to_rgb(animated("PNG", default_image=True)))


def test_a_gif_is_white_where_its_first_picture_does_not_reach() -> None:
    data = bytearray(saved(Image.new("P", (4, 4), 1), "GIF"))
    colour = Image.open(BytesIO(bytes(data))).convert("RGB").getpixel((0, 0))
    at = data.index(b",", 13 + (3 << ((data[10] & 7) + 1)))
    data[at + 1 : at + 5] = struct.pack("<HH", 2, 3)
    data[6:10] = struct.pack("<HH", 8, 5)
    pixels = to_rgb(bytes(data))
    assert pixels.shape == (7, 8, 3)
    assert (pixels[3:7, 2:6] == colour).all()
    pixels[3:7, 2:6] = 255
    assert (pixels == 255).all()


@pytest.mark.parametrize("interlaced", [False, True])
def test_an_interlaced_gif_is_unfolded(interlaced: bool) -> None:
    image = quadrants().quantize(8)
    pixels = to_rgb(saved(image, "GIF", interlace=interlaced))
    assert (pixels == np.asarray(image.convert("RGB"))).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ORIENTED)
def test_pixels_are_upright_wherever_the_orientation_is_written(name: str, orientation: int) -> None:
    data = ORIENTED[name](orientation)
    header, pixels = sniff(data), to_rgb(data)
    assert pixels.shape == (header.height, header.width, 3)
    with Image.open(BytesIO(data)) as image:
        reference = ImageOps.exif_transpose(image)
        assert reference is not None
        assert (pixels == np.asarray(reference.convert("RGB"))).all()


@pytest.mark.parametrize("garbage", [b"Exif\x00\x00garbage, not a TIFF", b"Exif\x00\x00II\x2a\x00", b"Exif\x00\x00"])
def test_garbage_instead_of_exif_changes_nothing(garbage: bytes) -> None:
    plain = saved(quadrants(), "JPEG")
    files = [
        (jpeg_with_segments(plain, garbage), plain),
        (with_late_chunks(saved(quadrants(), "PNG"), chunk(b"eXIf", garbage)), saved(quadrants(), "PNG")),
        (saved(quadrants(), "WEBP", exif=garbage), saved(quadrants(), "WEBP")),
    ]
    for broken, sound in files:
        assert sniff(broken).orientation == 1
        assert (to_rgb(broken) == to_rgb(sound)).all()


def test_garbage_exif_leaves_the_word_to_xmp() -> None:
    garbage = b"Exif\x00\x00nothing"
    files = [
        jpeg_with_segments(saved(quadrants(), "JPEG"), garbage, jpeg_xmp_payload(6)),
        with_late_chunks(saved(quadrants(), "PNG"), chunk(b"eXIf", garbage), text_chunk(b"XML:com.adobe.xmp", xmp(6))),
        saved(quadrants(), "WEBP", exif=garbage, xmp=xmp(6)),
    ]
    for data in files:
        assert sniff(data).orientation == 6
        assert to_rgb(data).shape == (WIDTH, HEIGHT, 3)


def test_late_exif_of_an_animated_png_counts_too() -> None:
    data = with_late_chunks(animated("PNG"), chunk(b"eXIf", tiff(8)))
    assert to_rgb(data).shape == (WIDTH, HEIGHT, 3)


def test_metadata_that_breaks_a_decoder_does_not_reach_it() -> None:
    broken = (
        chunk(b"iCCP", b"x\x00\x07") + chunk(b"pHYs", b"") + chunk(b"zTXt", b"k\x00\x09") + chunk(b"acTL", bytes(8))
    )
    sound = saved(quadrants(), "PNG")
    data = sound[:33] + broken + sound[33:]
    assert (to_rgb(data) == to_rgb(sound)).all()
    mpf = b"\xff\xe2" + struct.pack(">H", 2 + 40) + b"MPF\x00II\x2a\x00" + bytes(32)
    jpeg = saved(quadrants(), "JPEG")
    assert (to_rgb(jpeg[:2] + mpf + jpeg[2:]) == to_rgb(jpeg)).all()


@pytest.mark.parametrize("interlace", [0, 1])
@pytest.mark.parametrize("rows", [0, 1, 7, 15])
def test_image_data_that_ends_early_but_cleanly_is_truncated(rows: int, interlace: int) -> None:
    data = png(4, 16, 8, 2, (b"\x00" + bytes([200] * 12)) * rows, interlace=interlace)
    with pytest.raises(InvalidMedia):
        to_rgb(data)


def test_an_image_that_ends_in_black_is_whole() -> None:
    assert not to_rgb(saved(Image.new("RGB", (300, 200)), "PNG")).any()
    assert (to_rgb(saved(Image.new("RGBA", (300, 200)), "PNG")) == 255).all()


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (8, 8), (4, 1), (1, 9), (17, 13)])
@pytest.mark.parametrize("mode", ["1", "L", "RGB", "RGBA"])
def test_an_interlaced_png_of_any_size_is_whole(mode: str, size: tuple[int, int]) -> None:
    width, height = size
    depth, colour, bits = {"1": (1, 0, 1), "L": (8, 0, 8), "RGB": (8, 2, 24), "RGBA": (8, 6, 32)}[mode]
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    rows = b""
    for x, y, step_x, step_y in passes:
        columns = len(range(x, width, step_x))
        if columns:
            rows += (b"\x00" + b"\xff" * ((columns * bits + 7) // 8)) * len(range(y, height, step_y))
    assert (to_rgb(png(width, height, depth, colour, rows, interlace=1)) == 255).all()
    with pytest.raises(InvalidMedia):
        to_rgb(png(width, height, depth, colour, rows[:-1], interlace=1))


def test_a_png_with_its_tail_cut_anywhere_is_refused() -> None:
    data = saved(noise(9, 9), "PNG")
    for end in range(len(data)):
        with pytest.raises(InvalidMedia):
            to_rgb(data[:end])


def test_a_png_with_one_wrong_byte_anywhere_is_refused() -> None:
    data = saved(noise(9, 9), "PNG")
    for place in range(len(data)):
        with pytest.raises(InvalidMedia):
            to_rgb(data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :])


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_a_lossy_image_with_its_tail_cut_is_refused(kind: str) -> None:
    data = saved(noise(64, 64), kind)
    for cut in (1, 2, 10, len(data) // 3, len(data) // 2):
        with pytest.raises(InvalidMedia):
            to_rgb(data[:-cut])


def test_a_gif_cut_inside_its_first_picture_is_refused() -> None:
    data = saved(noise(64, 64).quantize(200), "GIF")
    for cut in (3, 10, len(data) // 3):
        with pytest.raises(InvalidMedia):
            to_rgb(data[:-cut])


def test_another_image_than_expected_is_refused_with_both_descriptions() -> None:
    data = saved(quadrants(), "PNG", exif=exif(6))
    header = sniff(data)
    assert to_rgb(data, header).shape == (WIDTH, HEIGHT, 3)
    for change in ({"width": 31}, {"height": 47}, {"orientation": 8}, {"format": "jpeg"}, {"raw_width": 1}):
        with pytest.raises(InvalidMedia, match=r"PNG 32x48 \(orientation 6\), expected"):
            to_rgb(data, dataclasses.replace(header, **change))


def test_a_header_that_lies_about_the_size_is_refused_after_decoding() -> None:
    # An extended WebP whose canvas differs from its only frame.
    data = bytearray(saved(quadrants(), "WEBP", exif=exif(1)))
    data[24] += 2
    assert sniff(bytes(data)).width == WIDTH + 2
    with pytest.raises(InvalidMedia):
        to_rgb(bytes(data))


def test_huge_images_nobody_agreed_to_are_refused_before_decoding() -> None:
    bomb = PNG_MAGIC + chunk(b"IHDR", struct.pack(">LLBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    bomb += chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    with pytest.raises(InvalidMedia, match=str(MAX_UNANNOUNCED_PIXELS)) as caught:
        to_rgb(bomb)
    assert caught.value.media_code == "image_too_large"
    with pytest.raises(InvalidMedia, match="bomb"):
        to_rgb(bomb, sniff(bomb))


def test_half_images_are_never_let_through_by_a_global_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(InternalError, match="LOAD_TRUNCATED_IMAGES"):
        to_rgb(saved(quadrants(), "JPEG"))


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"<html></html>", b"BM" + bytes(99)])
def test_what_cannot_be_sniffed_cannot_be_decoded(data: bytes) -> None:
    with pytest.raises(InvalidMedia):
        to_rgb(data)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 1}])
def test_what_follows_the_end_of_a_jpeg_is_not_part_of_it(options: dict[str, object]) -> None:
    data = saved(noise(40, 24), "JPEG", **options)
    for tail in (b"junk", saved(noise(9, 9), "JPEG"), b"\xff\xda\x00\x01" * 500):
        assert (to_rgb(data + tail) == to_rgb(data)).all()
        assert (to_rgb(data) == np.asarray(Image.open(BytesIO(data)))).all()


def test_a_jpeg_of_endless_scans_is_refused() -> None:
    data = saved(quadrants(), "JPEG", progressive=True)
    scan = data[data.rindex(b"\xff\xda") : -2]
    assert to_rgb(data[:-2] + scan + data[-2:]).shape == (HEIGHT, WIDTH, 3)
    with pytest.raises(InvalidMedia, match="scans"):
        to_rgb(data[:-2] + scan * 200 + data[-2:])


def test_a_jpeg_with_foreign_markers_in_its_picture_is_refused() -> None:
    data = saved(noise(40, 24), "JPEG")
    for marker in (b"\xff\xd8", b"\xff\xc0\x00\x02", b"\xff\x01", b"\xff\xfd"):
        with pytest.raises(InvalidMedia, match="in its picture"):
            to_rgb(data[:-30] + marker + data[-30:])
