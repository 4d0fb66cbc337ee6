"""Digests as eight signed numbers, and back."""

import random
from collections.abc import Sequence

import pytest

from triptych.errors import InvalidRecord
from triptych.multimodal.words import to_hex, to_words


def test_words_are_big_endian_and_signed() -> None:
    digest = "00000001" + "7fffffff" + "80000000" + "ffffffff" + "0" * 32
    assert to_words(digest) == (1, 2**31 - 1, -(2**31), -1, 0, 0, 0, 0)


def test_every_digest_comes_back() -> None:
    chosen = random.Random(0)
    for _ in range(1000):
        digest = chosen.randbytes(32).hex()
        words = to_words(digest)
        assert len(words) == 8
        assert all(-(2**31) <= word < 2**31 for word in words)
        assert to_hex(words) == digest


@pytest.mark.parametrize(
    "digest", ["", "0" * 63, "0" * 65, "g" + "0" * 63, "A" * 64, "0" * 62 + " 0", "0" * 63 + "\n", "٠" * 64]
)
def test_what_is_no_digest_is_refused(digest: str) -> None:
    with pytest.raises(InvalidRecord, match="expected 64"):
        to_words(digest)


@pytest.mark.parametrize("words", [(0,) * 7, (0,) * 9, (), (2**31, *(0,) * 7), (-(2**31) - 1, *(0,) * 7)])
def test_words_of_another_number_or_size_are_refused(words: Sequence[int]) -> None:
    with pytest.raises(InvalidRecord, match="digest of"):
        to_hex(words)
