"""A digest as eight signed 32-bit numbers, as systems exchange it that hold hashes in integer arrays.

The first eight hexadecimal digits are the first number, big-endian and in two's complement.
"""

import re
import struct
from collections.abc import Sequence

from triptych.errors import InvalidRecord

NUM_WORDS = 8
_HEX = re.compile(r"[0-9a-f]{64}")
_WORDS = struct.Struct(f">{NUM_WORDS}i")


def to_words(digest: str) -> tuple[int, ...]:
    """Eight int32 of 64 lower-case hexadecimal digits; `to_hex` is the way back. Raises InvalidRecord."""
    if not _HEX.fullmatch(digest):
        raise InvalidRecord(f"digest {digest[:80]!r} of {len(digest)} characters, expected 64 of 0-9 and a-f")
    return _WORDS.unpack(bytes.fromhex(digest))


def to_hex(words: Sequence[int]) -> str:
    """64 hexadecimal digits of eight int32. Raises InvalidRecord for another number of words, or for larger ones."""
    if len(words) != NUM_WORDS:
        raise InvalidRecord(f"digest of {len(words)} words, expected {NUM_WORDS}")
    try:
        return _WORDS.pack(*words).hex()
    except struct.error as error:
        raise InvalidRecord(f"digest of words that are not int32: {list(words)}") from error
