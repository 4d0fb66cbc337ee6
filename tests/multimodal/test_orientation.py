import random
import struct
import warnings

import pytest
from PIL import Image

from tests.multimodal.images import exif, tiff, xmp
from triptych.multimodal.orientation import orientation_of

TAG = 274


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("value", range(1, 9))
def test_the_tag_is_read_in_both_byte_orders(value: int, order: str) -> None:
    assert orientation_of(exif(value, order), b"") == value
    assert orientation_of(tiff(value, order), b"") == value
    assert orientation_of(b"Exif\x00\x00" + exif(value, order), b"") == value


@pytest.mark.parametrize("element", [False, True])
@pytest.mark.parametrize("value", range(1, 9))
def test_xmp_is_read_as_attribute_and_as_element(value: int, element: bool) -> None:
    assert orientation_of(b"", xmp(value, element=element)) == value


def test_exif_wins_over_xmp() -> None:
    assert orientation_of(exif(3), xmp(6)) == 3
    assert orientation_of(exif(1), xmp(6)) == 1


@pytest.mark.parametrize("value", [0, 9, 300, 65535])
def test_a_value_outside_1_to_8_means_upright_and_still_wins(value: int) -> None:
    assert orientation_of(exif(value), xmp(6)) == 1


@pytest.mark.parametrize("value", [0, 9])
def test_xmp_outside_1_to_8_means_upright(value: int) -> None:
    assert orientation_of(b"", xmp(value)) == 1


@pytest.mark.parametrize(
    "garbage", [b"", b"garbage!" * 20, b"Exif\x00\x00", b"II\x2a\x00", b"II\x2a\x00\xff\xff\xff\xff"]
)
def test_exif_that_is_no_tiff_counts_as_absent(garbage: bytes) -> None:
    assert orientation_of(garbage, b"") == 1
    assert orientation_of(garbage, xmp(6)) == 6


def test_a_tag_of_bytes_holds_no_number_and_means_upright() -> None:
    assert orientation_of(tiff(6, kind=1), xmp(8)) == 1
    assert orientation_of(tiff(6, kind=4), xmp(8)) == 6


def _pillow_tag(record: bytes) -> object:
    """What Pillow finds for the tag; nothing when it refuses the record."""
    found = Image.Exif()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found.load(b"Exif\x00\x00" + record)
            return found.get(TAG)
        except (SyntaxError, struct.error):
            return None


def _random_record(rng: random.Random) -> bytes:
    """A directory of a few entries, many of them sound, some pointing nowhere; then perhaps cut or flipped."""
    order = rng.choice("<>")
    entries = b""
    count = rng.randrange(1, 6)
    for _ in range(count):
        tag = rng.choice([TAG, TAG, 271, 272, 270, rng.randrange(65536)])
        kind = rng.choice([3, 3, 3, *range(18)])
        number = rng.choice([1, 1, 1, 0, 2, 3, 9, 10_000, 1 << 31])
        value = rng.choice(
            [
                struct.pack(order + "HH", rng.randrange(10), rng.randrange(10)),
                struct.pack(order + "L", rng.randrange(120)),
                struct.pack(order + "f", rng.randrange(10)),
                rng.randbytes(4),
            ]
        )
        entries += struct.pack(order + "HHL", tag, kind, number) + value
    magic = rng.choice([b"II\x2a\x00", b"II\x00\x2a"] if order == "<" else [b"MM\x00\x2a", b"MM\x2a\x00"])
    tail = struct.pack(order + "LL", rng.randrange(10), rng.randrange(3)) * 6
    record = bytearray(magic + struct.pack(order + "LH", 8, rng.choice([count, count, 2, 900])) + entries + tail)
    if rng.random() < 0.3:
        record[rng.randrange(4, len(record))] = rng.randrange(256)
    return bytes(record[: rng.randrange(len(record))] if rng.random() < 0.3 else record)


def test_any_record_is_read_as_pillow_reads_it() -> None:
    rng = random.Random(7)
    met: dict[int, int] = {}
    for _ in range(6000):
        record = _random_record(rng)
        expected = _pillow_tag(record)
        fallback = 5 if expected is None else 1
        upright = expected not in range(1, 9)
        found = orientation_of(record, xmp(5))
        assert found == (fallback if upright else expected), (record.hex(), expected)
        met[found] = met.get(found, 0) + 1
    assert len(met) == 8
