"""The question of the self-test, and whether what came back is right: everything about it that needs no worker."""

import base64
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from triptych.errors import ConfigError
from triptych.journey import Token
from triptych.models.config_values import read_optional_json
from triptych.sampling import MOST_TOP_LOGPROBS

NUM_TOKENS = 6
FILE = "self_test.json"  # beside a model's weights: {"token_ids": [...]}, the right answer's first tokens
QUESTION = "What is on the left?"
_MOST_URGENT = -(1 << 31)
_WIDTH, _HEIGHT = 112, 84  # pixels
# Natural logarithm of how much likelier one token must be than another for them not to count as equally good: kernels
# of few rows and of many round differently, in 16 and 8 bits more so.
_NEAR_TIE = 0.25


def body(model: str, salt: str) -> bytes:
    """The question as a client would ask it. A salt that nobody has used keeps every cache out of the answer."""
    url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    fields: dict[str, object] = {
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 5,
        "repetition_penalty": 1,
    }
    fields |= {
        "top_logprobs": MOST_TOP_LOGPROBS,
        "max_tokens": NUM_TOKENS,
        "cache_salt": salt,
        "priority": _MOST_URGENT,
    }
    return json.dumps({"model": model, "messages": [{"role": "user", "content": content}], **fields}).encode()


def picture() -> bytes:
    """A PNG: a red disc on the left and a blue square on the right, on white."""
    rows = b"".join(b"\0" + bytes(value for pixel in _row(y) for value in pixel) for y in range(_HEIGHT))
    header = struct.pack(">IIBBBBB", _WIDTH, _HEIGHT, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def known_answer(folder: Path) -> tuple[int, ...]:
    """What the model's folder says is right; empty where it says nothing.

    Raises ConfigError where what it says makes no sense.
    """
    ids = read_optional_json(folder / FILE).get("token_ids", [])
    if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
        raise ConfigError(f"{folder / FILE} has token_ids {ids!r}, expected a list of ids")
    return tuple(ids[:NUM_TOKENS])


def difference(right: Sequence[int], found: Sequence[Token]) -> str:
    """How an answer differs from the right one, in words; empty where it does not.

    Behind a token that was as good as the right one the two are different texts, and nothing more can be said.
    """
    for position, (wanted, token) in enumerate(zip(right, found, strict=False)):
        if token.id == wanted:
            continue
        return "" if is_as_good(wanted, token) else f"token {position} is {token.id}, expected {wanted}"
    missing = min(len(right), NUM_TOKENS) - len(found)
    return f"{missing} of its tokens are missing" if missing > 0 else ""


def is_as_good(other: int, token: Token) -> bool:
    """Whether whoever chose `token` held another one for about as likely."""
    likelihood = dict(token.top).get(other)
    return other == token.id or (likelihood is not None and likelihood > token.logprob - _NEAR_TIE)


def _row(y: int) -> Iterator[tuple[int, int, int]]:
    for x in range(_WIDTH):
        if (x - 28) ** 2 + (y - 42) ** 2 <= 20**2:
            yield (220, 30, 30)
        elif 66 <= x < 102 and 24 <= y < 60:
            yield (30, 60, 220)
        else:
            yield (255, 255, 255)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
