import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from tests.multimodal.images import (
    HEIGHT,
    ORIENTED,
    PNG_MAGIC,
    WIDTH,
    animated,
    chunk,
    exif,
    jpeg_with_segments,
    plain_files,
    png,
    quadrants,
    saved,
    with_late_chunks,
)
from triptych.errors import InvalidMedia
from triptych.multimodal.sniff import MediaHeader, glance, sniff

FILES = plain_files()


@pytest.mark.parametrize("name", FILES)
def test_format_and_stored_size_are_what_pillow_reads(name: str) -> None:
    header = sniff(FILES[name])
    with Image.open(BytesIO(FILES[name])) as image:
        assert (header.raw_width, header.raw_height) == image.size
        assert header.format == (image.format or "").lower()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ORIENTED)
def test_an_orientation_is_found_wherever_it_is_written(name: str, orientation: int) -> None:
    header = sniff(ORIENTED[name](orientation))
    size = (HEIGHT, WIDTH) if orientation >= 5 else (WIDTH, HEIGHT)
    assert (header.orientation, (header.width, header.height)) == (orientation, size)
    assert (header.raw_width, header.raw_height) == (WIDTH, HEIGHT)


@pytest.mark.parametrize(
    ("data", "frames"),
    [
        (saved(quadrants(), "PNG"), 1),
        (animated("PNG"), 3),
        (animated("WEBP"), 3),
        (saved(quadrants(), "WEBP", exif=exif(1)), 1),
        (animated("GIF"), 0),
    ],
)
def test_frames_are_counted_where_the_header_tells(data: bytes, frames: int) -> None:
    assert sniff(data).frames_hint == frames


def test_a_gif_canvas_holds_its_first_picture() -> None:
    data = bytearray(saved(quadrants().quantize(8), "GIF"))
    data[6:10] = struct.pack("<HH", 10, 100)
    header = sniff(bytes(data))
    assert (header.width, header.height) == (WIDTH, 100)


def test_an_exif_record_may_go_on_in_a_second_segment() -> None:
    record = exif(8)
    data = jpeg_with_segments(saved(quadrants(), "JPEG"), record[:20], b"Exif\x00\x00" + record[20:])
    assert sniff(data).orientation == 8


def test_exif_behind_the_pixels_of_a_jpeg_does_not_count() -> None:
    data = saved(quadrants(), "JPEG")
    assert sniff(data[:-2] + jpeg_with_segments(b"\xff\xd8", exif(6))[2:] + data[-2:]).orientation == 1


def test_padding_between_jpeg_segments_is_skipped() -> None:
    data = saved(quadrants(), "JPEG", exif=exif(3))
    padded = data[:2] + b"\xff" * 9 + data[2:]
    assert sniff(padded) == sniff(data)


def test_metadata_of_a_webp_counts_only_when_announced() -> None:
    data = bytearray(saved(quadrants(), "WEBP", exif=exif(6)))
    assert sniff(bytes(data)).orientation == 6
    data[20] &= ~0x08
    assert sniff(bytes(data)).orientation == 1
    assert Image.open(BytesIO(bytes(data))).getexif().get(274, 1) == 1


def test_bytes_behind_the_end_do_not_matter() -> None:
    for name in ("png", "webp", "gif", "jpeg"):
        assert sniff(FILES[name] + b"trailing bytes") == sniff(FILES[name])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"BM" + bytes(60), "BMP"),
        (b"II\x2a\x00" + bytes(60), "TIFF"),
        (b"\x00\x00\x00\x20ftypmif1" + bytes(60), "HEIF"),
        (b"\x00\x00\x00\x20ftypheic" + bytes(60), "HEIC"),
        (b"%PDF-1.7", "PDF"),
        (b'  <?xml version="1.0"?><svg xmlns="x"/>', "SVG"),
        (b"<!DOCTYPE html><html>404</html>", "HTML"),
        (b"hello, I am text", "68 65 6c 6c 6f"),
        (b"\x00", "starts with 00"),
    ],
)
def test_other_files_are_named_in_the_refusal(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidMedia, match=reason) as caught:
        sniff(data)
    assert caught.value.media_code == "unsupported_image_format"


def test_no_bytes_are_refused_as_empty() -> None:
    with pytest.raises(InvalidMedia, match="empty") as caught:
        sniff(b"")
    assert caught.value.media_code == "invalid_image"


def _jpeg_frame(marker: int = 0xC0, precision: int = 8, height: int = 4, width: int = 4, parts: int = 3) -> bytes:
    """Start, frame header, scan header: enough to be sniffed."""
    frame = struct.pack(">BHHB", precision, height, width, parts) + bytes(3 * parts)
    segment = bytes([0xFF, marker]) + struct.pack(">H", 2 + len(frame)) + frame
    return b"\xff\xd8" + segment + b"\xff\xda\x00\x02"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (_jpeg_frame(width=0), "no pixels"),
        (_jpeg_frame(height=0), "no pixels"),
        (png(0, 4, 8, 2, b""), "no pixels"),
        (png(4, 0, 8, 2, b""), "no pixels"),
        (png(1 << 31, 4, 8, 2, b""), "2147483648x4"),
        (b"GIF89a" + bytes(7) + b"," + bytes(10), "0x0"),
        (b"GIF89a" + bytes(7) + b";", "no picture"),
        (b"RIFF\x16\x00\x00\x00WEBPVP8 \x0a\x00\x00\x00\x00\x00\x00\x9d\x01\x2a\x00\x00\x08\x00", "no pixels"),
        (_jpeg_frame()[:-4], "truncated"),
        (_jpeg_frame()[:12], "truncated"),
        (b"\xff\xd8\xff\xda\x00\x02", "before the frame header"),
        (_jpeg_frame()[:-4] + _jpeg_frame()[2:], "two frame headers"),
        (b"\xff\xd8\xff\xd9", "unexpected marker 0xd9"),
        (b"\xff\xd8\xff\xe0\x00\x01", "length 1"),
        (png(4, 4, 8, 1, b""), "colour type 1"),
        (png(4, 4, 16, 3, b""), "16 bits"),
        (png(4, 4, 8, 3, b""), "no palette"),
        (png(4, 4, 8, 2, b"", interlace=2), "interlace 2"),
        (png(4, 4, 8, 2, b"", before=chunk(b"ABCD", b"")), "unknown critical"),
        (png(4, 4, 8, 2, b"", before=chunk(b"a\x00cD", b"")), "chunk type"),
        (png(4, 4, 8, 2, b"", before=chunk(b"IDAT", b"") + chunk(b"teXt", b"")), "between"),
        (PNG_MAGIC + chunk(b"IEND", b""), "starts with chunk"),
        (PNG_MAGIC + chunk(b"IHDR", bytes(5)) + chunk(b"IEND", b""), "5 bytes"),
        (saved(quadrants(), "PNG")[:-12], "truncated"),
        (saved(quadrants(), "PNG")[:-1], "truncated"),
        (saved(quadrants(), "PNG")[:60], "truncated"),
        (saved(quadrants(), "WEBP")[:-1], "truncated"),
        (b"RIFF\x0e\x00\x00\x00WEBPABCD\x02\x00\x00\x00xx", "first chunk"),
        (b"RIFF\x04\x00\x00\x00WEBP", "truncated"),
    ],
)
def test_a_file_that_breaks_its_format_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidMedia, match=reason) as caught:
        sniff(data)
    assert caught.value.media_code == "invalid_image"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (_jpeg_frame(marker=0xC3), "lossless"),
        (_jpeg_frame(precision=12), "12-bit"),
        (_jpeg_frame(parts=2), "2 components"),
    ],
)
def test_a_kind_of_jpeg_that_is_not_decoded_is_called_unsupported(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidMedia, match=reason) as caught:
        sniff(data)
    assert caught.value.media_code == "unsupported_image_format"


def test_a_wrong_checksum_over_the_header_is_refused() -> None:
    data = bytearray(saved(quadrants(), "PNG"))
    data[19] ^= 1
    with pytest.raises(InvalidMedia, match="checksum"):
        sniff(bytes(data))


def test_endless_pieces_are_refused() -> None:
    many = 1 << 17
    floods = [
        b"\xff\xd8" + b"\xff\xfe\x00\x02" * many,
        PNG_MAGIC + chunk(b"IHDR", bytes(13)) + chunk(b"teXt", b"") * many,
        b"GIF89a" + bytes(7) + b"!\xfe" + b"\x01x" * many + b"\x00,",
        b"GIF89a" + bytes(7) + b"!\xfe\x00" * many + b",",
        b"RIFF"
        + struct.pack("<L", 22 + 8 * many)
        + b"WEBPVP8X\x0a\x00\x00\x00"
        + bytes(10)
        + b"ABCD\x00\x00\x00\x00" * many,
    ]
    for flood in floods:
        with pytest.raises(InvalidMedia, match="more than"):
            sniff(flood)


def test_a_text_that_inflates_without_end_counts_as_absent() -> None:
    bomb = chunk(b"zTXt", b"Raw profile type exif\x00\x00" + zlib.compress(bytes(50_000_000)))
    assert sniff(with_late_chunks(saved(quadrants(), "PNG"), bomb)).orientation == 1


def test_the_header_tells_pixels() -> None:
    assert MediaHeader("png", 3, 4, 4, 3, 6).pixels == 12


@pytest.mark.parametrize("seed", range(12))
def test_a_glance_sees_what_a_look_sees_or_nothing(seed: int) -> None:
    random = np.random.default_rng(seed)
    picture = Image.fromarray(random.integers(0, 256, (40 + seed, 60, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = seed % 8 + 1
    out = BytesIO()
    kind = ("JPEG", "JPEG", "PNG", "WEBP")[seed % 4]
    picture.save(out, kind, exif=exif)
    data = out.getvalue()
    assert glance(data) == (sniff(data) if kind == "JPEG" else None)
    assert glance(data[:3] + b"\xe2\x00\x02\xff" * 70 + data[3:]) is None  # too many segments for a glance
    assert glance(data[:100]) is None


def test_a_glance_does_not_go_behind_the_first_kilobytes() -> None:
    out = BytesIO()
    Image.new("RGB", (9, 7)).save(out, "JPEG")
    data = out.getvalue()
    profile = b"\xff\xe2\xff\xff" + bytes((1 << 16) - 3)
    far = data[:2] + profile + data[2:]
    assert glance(far) is None
    assert sniff(far).width == 9
