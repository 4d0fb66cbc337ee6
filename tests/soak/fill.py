"""Makes a cluster meet once what it keeps for good, so that nobody takes that for a leak when it comes late.

oneDNN generates code for each number of rows that it multiplies, and keeps it: half a megabyte for each product, a few
megabytes for a number that is new to a model. Which numbers come is a matter of how many clients happen to ask at once,
so that some of them come after minutes. Here each of them comes once, one request at a time.

Pools start a thread when one more is wanted at once than ever before, which comes late, too: here more clients than the
load has ask at once, with files that take a while.
"""

import io
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
from PIL.PngImagePlugin import PngInfo

from tests.journey.conversations import picture, png
from tests.journey.messages import image, user
from tests.soak.load import ANSWER_SECONDS, body

CELL = 28  # pixels of a picture's side that become one embedding row
MOST_CELLS = 16  # on a side of the largest picture that the models take: 256 rows, 1,024 patches
MOST_PATCHES = 4 * MOST_CELLS**2
CHUNK_TOKENS = 128
LONGEST_PROMPT = 3 * CHUNK_TOKENS  # of those that the load asks
MOST_AT_ONCE = 16  # sequences that are decoded at once: more than six clients with two choices each have
TOGETHER = 24  # clients: four times as many as the load has
LARGE_BYTES = 4 << 20
_ORDINARY_TOKENS = range(40, 200)  # single bytes in every tokenizer that is served here


def fill(url: str) -> None:
    """Pictures of every size, prompts of every length, answers by every number at once."""
    rng = random.Random(0)
    with httpx.Client(base_url=url, timeout=ANSWER_SECONDS, trust_env=False) as client:
        for path, asked in (*_pictures(rng), *_prompts(rng), *_crowd(rng)):
            _ask(client, path, asked)
        with ThreadPoolExecutor(TOGETHER) as clients:
            for asking in [clients.submit(_ask, client, *each) for each in _large_files(rng)]:
                asking.result()


def _ask(client: httpx.Client, path: str, asked: object) -> None:
    answer = client.post(path, json=asked)
    assert answer.is_success, answer.text


def _pictures(rng: random.Random) -> Iterator[tuple[str, object]]:
    for high in range(1, MOST_CELLS + 1):
        for wide in range(high, MOST_CELLS + 1):
            seen = png(picture(rng.getrandbits(31), (CELL * wide, CELL * high)))
            yield "/v1/chat/completions", body([user(image(seen), "What is this?")], max_tokens=1)


def _prompts(rng: random.Random) -> Iterator[tuple[str, object]]:
    for length in range(1, LONGEST_PROMPT + 1):
        yield "/v1/completions", _continued(_drawn(rng, length), max_tokens=1)


def _crowd(rng: random.Random) -> Iterator[tuple[str, object]]:
    """A chunk each, so that they begin to be decoded one after the other."""
    prompts = [_drawn(rng, CHUNK_TOKENS) for _ in range(MOST_AT_ONCE)]
    yield "/v1/completions", _continued(prompts, max_tokens=8 * MOST_AT_ONCE)


def _large_files(rng: random.Random) -> Iterator[tuple[str, object]]:
    """Small pictures in files that every thread has to do with for a while."""
    for _ in range(2 * TOGETHER):
        padding = PngInfo()
        padding.add(b"paDd", rng.randbytes(LARGE_BYTES))
        file = io.BytesIO()
        picture(rng.getrandbits(31), (CELL, CELL)).save(file, "PNG", pnginfo=padding)
        yield "/v1/chat/completions", body([user(image(file.getvalue()), "What is this?")], max_tokens=1)


def _continued(prompt: Sequence[object], **fields: object) -> dict[str, object]:
    return {"model": "m", "prompt": prompt, "ignore_eos": True, **fields}


def _drawn(rng: random.Random, length: int) -> list[int]:
    return [rng.choice(_ORDINARY_TOKENS) for _ in range(length)]
