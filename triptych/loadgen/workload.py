"""Request bodies with synthetic pictures, all made before the clock starts.

A body is a pure function of the options, so that two servers get the same bytes.
"""

import base64
import io
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from triptych.loadgen.options import BenchOptions

# With a space in front each is one token in the embedded model's vocabulary and in those of the large models.
WORDS = tuple(
    word
    for line in (
        "the image text shape colour of in on and is it to or no yes what which how many there here this does says has",
        "red blue green black white yellow orange purple left right above below bottom first second third fourth",
        "both same circle square triangle star diamond cross shown written",
    )
    for word in line.split()
)

MEASURED, WARMUP = 0, 1  # kinds of body: the same seed never gives a warm-up picture that is measured later
_PLAN, _PICTURE, _TEXT, _ARRIVAL = range(4)  # independent random streams of one seed


def make_bodies(options: BenchOptions, kind: int = MEASURED) -> list[bytes]:
    """JSON bodies in sending order; pictures are made on all cores."""
    count = options.requests if kind == MEASURED else options.warmup
    plan = plan_images(options, kind, count)
    wanted = sorted({identity for request in plan for identity in request})
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        uris = dict(zip(wanted, pool.map(lambda identity: _data_uri(options, kind, identity), wanted), strict=True))
    return [_body(options, kind, index, [uris[identity] for identity in images]) for index, images in enumerate(plan)]


def arrival_times(options: BenchOptions) -> list[float]:
    """Seconds from the start at which each request is due: a Poisson process, the first at 0."""
    if options.rate is None:
        raise ValueError("a closed loop has no arrival times")
    gaps = np.random.default_rng([options.seed, _ARRIVAL]).exponential(1 / options.rate, options.requests - 1)
    return [0.0, *np.cumsum(gaps).tolist()]


def plan_images(options: BenchOptions, kind: int, count: int) -> list[list[int]]:
    """Which picture stands in each place; a repeat is any of those before it, all equally likely."""
    random = np.random.default_rng([options.seed, _PLAN, kind])
    distinct = 0
    plan = []
    for _ in range(count):
        request = []
        for _ in range(options.images):
            if distinct and random.random() < options.repeat_share:
                request.append(int(random.integers(distinct)))
            else:
                request.append(distinct)
                distinct += 1
        plan.append(request)
    return plan


def make_jpeg(seed: Sequence[int], width: int, height: int, quality: int) -> bytes:
    """A picture of smooth noise at three scales: it compresses about as a photograph does, and no two are equal."""
    random = np.random.default_rng(seed)
    picture = np.zeros((height, width, 3), dtype=np.float32)
    for cell, weight in ((64, 0.6), (12, 0.3), (2, 0.1)):
        coarse = (max(1, height // cell), max(1, width // cell), 3)
        noise = Image.fromarray(random.integers(0, 256, coarse, dtype=np.uint8))
        picture += weight * np.asarray(noise.resize((width, height), Image.Resampling.BICUBIC))
    out = io.BytesIO()
    Image.fromarray(picture.astype(np.uint8)).save(out, "JPEG", quality=quality)
    return out.getvalue()


def _data_uri(options: BenchOptions, kind: int, identity: int) -> str:
    seed = (options.seed, _PICTURE, kind, identity)
    jpeg = make_jpeg(seed, options.width, options.height, options.jpeg_quality)
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()


def _body(options: BenchOptions, kind: int, index: int, uris: Sequence[str]) -> bytes:
    content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": uri}} for uri in uris]
    if options.text_tokens:
        random = np.random.default_rng([options.seed, _TEXT, kind, index])
        chosen = random.choice(WORDS, options.text_tokens)
        content.append({"type": "text", "text": "".join(f" {word}" for word in chosen)})
    body = {
        "model": options.model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": options.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if options.ignore_eos:
        body["ignore_eos"] = True
    return json.dumps(body | dict(options.extra_body)).encode()
