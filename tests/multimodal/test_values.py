"""Arrays and images have one encoding each, which nothing else shares."""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.multimodal.images import noise, quadrants
from triptych.errors import InvalidRecord
from triptych.multimodal.digest import OptionValue, encode_canonical
from triptych.multimodal.values import IMAGE_MODES, ITEM_BYTES, ArrayValue, ImageValue, array_value, image_value

NUMBERS = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_an_array_is_encoded_as_written_down() -> None:
    expected = (
        "11 01 00 00 00 00 00 00 00 05 69 6e 74 31 36"  # int16
        "02 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 02"  # 1 x 2
        "00 00 00 00 00 00 00 04 01 00 ff ff"
    )
    assert encode_canonical(np.array([[1, -1]], dtype=np.int16)) == bytes.fromhex(expected)


def test_an_image_is_encoded_as_written_down() -> None:
    expected = (
        "10 01 00 00 00 00 00 00 00 01 4c"  # L
        "00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 02"  # 1 wide, 2 high
        "00 00 00 00 00 00 00 08 07 07 07 ff 09 09 09 ff"
    )
    image = Image.fromarray(np.array([[7], [9]], dtype=np.uint8))
    assert encode_canonical(image_value(image)) == bytes.fromhex(expected)


@pytest.mark.parametrize(
    "same",
    [
        NUMBERS.copy(order="F"),
        np.ascontiguousarray(NUMBERS.T).T,
        np.repeat(NUMBERS, 2, axis=1)[:, ::2],
        NUMBERS[::-1, ::-1][::-1, ::-1],
        NUMBERS.astype(">f4"),
        array_value(NUMBERS),
    ],
    ids=["fortran", "transposed", "strided", "reversed", "big-endian", "value"],
)
def test_strides_byte_order_and_container_are_no_part_of_an_array(same: npt.NDArray[Any] | ArrayValue) -> None:
    assert encode_canonical(same) == encode_canonical(NUMBERS)


def test_arrays_and_images_that_differ_never_share_an_encoding() -> None:
    picture = noise(3, 2)
    values: list[OptionValue] = [
        NUMBERS,
        NUMBERS.reshape(3, 2),
        NUMBERS.reshape(6),
        NUMBERS.reshape(1, 2, 3),
        NUMBERS.T,
        NUMBERS.view(np.int32),
        NUMBERS.astype(np.float64),
        NUMBERS.view(np.uint8),
        NUMBERS.tobytes(),
        NUMBERS.tolist(),
        np.zeros((0, 3), np.float32),
        np.zeros((3, 0), np.float32),
        np.zeros(0, np.float32),
        np.zeros((), np.float32),
        0.0,
        np.zeros(1, np.bool_),
        np.zeros(1, np.uint8),
        image_value(picture),
        image_value(picture.rotate(90, expand=True)),
        image_value(picture.convert("L")),
        image_value(picture.convert("L").convert("RGB")),  # looks like the one before
        image_value(picture.convert("RGBA")),
        np.asarray(picture),
        np.asarray(picture.convert("RGBA")),
        ImageValue("RGB", 3, 2, bytes(24)),
        ImageValue("RGB", 2, 3, bytes(24)),
        [],
        [[]],
    ]
    for one, other in itertools.combinations(values, 2):
        assert encode_canonical(one) != encode_canonical(other)


def test_one_pixel_makes_another_image() -> None:
    changed = quadrants()
    red, green, blue = (int(level) for level in np.asarray(changed)[5, 7])
    changed.putpixel((7, 5), (red, green, blue ^ 1))
    assert encode_canonical(image_value(changed)) != encode_canonical(image_value(quadrants()))


def test_what_a_palette_leaves_out_still_counts() -> None:
    palette = quadrants().quantize(8)
    clear = palette.copy()
    clear.info["transparency"] = 0
    assert encode_canonical(image_value(palette)) != encode_canonical(image_value(clear))


@pytest.mark.parametrize("mode", IMAGE_MODES)
def test_every_listed_mode_can_be_named(mode: str) -> None:
    value = image_value(quadrants().convert(mode))
    assert (value.mode, value.width, value.height, len(value.rgba)) == (mode, 48, 32, 48 * 32 * 4)


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "HSV", "F", "I"])
def test_a_mode_that_rgba_would_flatten_is_refused(mode: str) -> None:
    with pytest.raises(InvalidRecord, match=f"mode {mode} has no canonical encoding"):
        image_value(quadrants().convert(mode))


@pytest.mark.parametrize("name", [name for name in ITEM_BYTES if not name.startswith(("bfloat", "float8"))])
def test_every_numpy_dtype_of_the_list_can_be_named(name: str) -> None:
    value = array_value(np.ones((2, 2), dtype=name))
    assert (value.dtype, len(value.payload)) == (name, 4 * ITEM_BYTES[name])


@pytest.mark.parametrize(
    "array",
    [
        np.array([object()]),
        np.array(["a"]),
        np.array([b"a"]),
        np.zeros(2, dtype=[("a", "i4")]),
        np.zeros(2, dtype="datetime64[s]"),
        np.ma.masked_array([1, 2], mask=[True, False]),
    ],
    ids=["object", "text", "bytes", "record", "time", "masked"],
)
def test_an_array_that_is_not_of_numbers_is_refused(array: npt.NDArray[Any]) -> None:
    with pytest.raises(InvalidRecord, match="no canonical encoding"):
        encode_canonical(array)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("float32", (2, 3), bytes(23)), "has 23 bytes, expected 24"),
        (("float32", (-2, -3), bytes(24)), "none negative"),
        (("float128", (1,), bytes(16)), "float128 has no canonical encoding"),
        (("uint8", (1,) * 256, bytes(1)), "up to 255 sides"),
    ],
)
def test_an_array_value_that_contradicts_itself_is_refused(fields: Any, message: str) -> None:
    with pytest.raises(InvalidRecord, match=message):
        ArrayValue(*fields)


@pytest.mark.parametrize("fields", [("RGB", 2, 3, bytes(18)), ("RGB", -2, -3, bytes(24)), ("CMYK", 2, 3, bytes(24))])
def test_an_image_value_that_contradicts_itself_is_refused(fields: Any) -> None:
    with pytest.raises(InvalidRecord):
        ImageValue(*fields)
