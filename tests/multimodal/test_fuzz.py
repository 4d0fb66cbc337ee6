"""Broken files of every kind: both readers refuse them by InvalidMedia alone, soon, and agree about the rest."""

import random
import resource
import struct
import time
import zlib
from collections.abc import Callable

import pytest

from tests.multimodal.images import PNG_MAGIC, plain_files
from triptych.errors import InvalidMedia
from triptych.multimodal.canonical import to_rgb
from triptych.multimodal.sniff import sniff

FILES = plain_files()
ROUNDS = 60


def _truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def _flip(rng: random.Random, data: bytes) -> bytes:
    broken = bytearray(data)
    # Mostly near the start, where structure is.
    reach = len(broken) if rng.random() < 0.5 else min(len(broken), 64)
    for _ in range(rng.randrange(1, 5)):
        broken[rng.randrange(reach)] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(broken)


def _splice(rng: random.Random, data: bytes) -> bytes:
    begin, end = sorted(rng.choices(range(len(data)), k=2))
    other = rng.choice(list(FILES.values()))
    return data[:begin] + rng.choice([b"", data[begin:end] * 2, other[: rng.randrange(len(other))]]) + data[end:]


def _flip_under_checksums(rng: random.Random, data: bytes) -> bytes:
    """A PNG with a byte changed inside a chunk whose checksum is then made to fit; other files are flipped."""
    if not data.startswith(PNG_MAGIC):
        return _flip(rng, data)
    chunks = []
    position = len(PNG_MAGIC)
    while position < len(data):
        (length,) = struct.unpack_from(">L", data, position)
        chunks.append(bytearray(data[position + 4 : position + 8 + length]))
        position += 12 + length
    chosen = rng.choice(chunks)
    chosen[rng.randrange(4, len(chosen)) if len(chosen) > 4 else 0] ^= 1 << rng.randrange(8)
    pieces = [struct.pack(">L", len(body) - 4) + body + struct.pack(">L", zlib.crc32(body)) for body in chunks]
    return PNG_MAGIC + b"".join(pieces)


def _agree(data: bytes) -> bool:
    """Whether the file passed; every other exception than InvalidMedia fails the test."""
    try:
        header = sniff(data)
    except InvalidMedia:
        with pytest.raises(InvalidMedia):
            to_rgb(data)
        return False
    assert min(header.width, header.height) > 0
    assert header.orientation in range(1, 9)
    try:
        pixels = to_rgb(data)
    except InvalidMedia:
        return False
    assert pixels.shape == (header.height, header.width, 3)
    return True


@pytest.mark.parametrize("breaking", [_truncate, _flip, _splice, _flip_under_checksums])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.filterwarnings("ignore")
def test_broken_files_are_refused_or_read_alike(name: str, breaking: Callable[[random.Random, bytes], bytes]) -> None:
    rng = random.Random(name + breaking.__name__)
    begin = time.monotonic()
    for _ in range(ROUNDS):
        _agree(breaking(rng, FILES[name]))
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("name", FILES)
def test_sound_files_pass(name: str) -> None:
    assert _agree(FILES[name])


@pytest.mark.parametrize("magic", [b"\xff\xd8\xff", PNG_MAGIC, b"GIF89a", b"RIFF\xff\x00\x00\x00WEBPVP8X", b""])
def test_noise_behind_a_magic_number_is_refused(magic: bytes) -> None:
    rng = random.Random(1)
    for length in [*range(40), 1000, 100_000]:
        assert not _agree(magic + rng.randbytes(length))


def test_small_files_that_claim_much_take_little_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, place, size in (("png", 16, ">LL"), ("gif", 6, "<HH"), ("webp lossless exif", 24, "<HxH")):
        for width, height in ((65_535, 65_535), (40_000, 40_000)):
            data = bytearray(FILES[name])
            struct.pack_into(size, data, place, width, height)
            if name == "png":
                struct.pack_into(">L", data, 29, zlib.crc32(data[12:29]))
            assert not _agree(bytes(data))
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 200_000
