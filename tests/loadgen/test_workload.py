"""Bodies: the same from the same seed, and as asked for."""

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from triptych.loadgen.options import BenchOptions
from triptych.loadgen.workload import WARMUP, arrival_times, make_bodies, make_jpeg, plan_images

OPTIONS = BenchOptions(model="m", requests=6, images=2, width=70, height=40, text_tokens=9, max_tokens=5)


def content(body: bytes) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = json.loads(body)["messages"][0]["content"]
    return parts


def pictures(bodies: list[bytes]) -> list[str]:
    return [part["image_url"]["url"] for body in bodies for part in content(body) if part["type"] == "image_url"]


def test_the_same_seed_makes_the_same_bytes_and_another_seed_others() -> None:
    assert make_bodies(OPTIONS) == make_bodies(OPTIONS)
    other = BenchOptions(**{**OPTIONS.workload(), "seed": 1})
    assert not set(pictures(make_bodies(OPTIONS))) & set(pictures(make_bodies(other)))


def test_a_body_asks_for_what_the_options_say() -> None:
    body = json.loads(make_bodies(OPTIONS)[0])
    asked = {name: body[name] for name in ("model", "max_tokens", "temperature", "stream", "ignore_eos")}
    assert asked == {"model": "m", "max_tokens": 5, "temperature": 0, "stream": True, "ignore_eos": True}
    assert body["stream_options"] == {"include_usage": True}
    *images, text = content(make_bodies(OPTIONS)[0])
    assert len(images) == 2
    assert len(text["text"].split()) == 9


def test_more_fields_are_sent_as_they_are() -> None:
    options = BenchOptions(model="m", images=0, extra_body={"logit_bias": {"2": -100}, "temperature": 1})
    body = json.loads(make_bodies(options)[0])
    assert (body["logit_bias"], body["temperature"]) == ({"2": -100}, 1)


def test_pictures_are_distinct_jpegs_of_the_size_asked_for() -> None:
    urls = pictures(make_bodies(OPTIONS) + make_bodies(OPTIONS, WARMUP))
    assert len(set(urls)) == len(urls) == 2 * (6 + 2)
    data = base64.b64decode(urls[0].removeprefix("data:image/jpeg;base64,"))
    with Image.open(io.BytesIO(data)) as image:
        assert (image.format, image.size) == ("JPEG", (70, 40))


def test_a_jpeg_is_about_as_large_as_a_photographs() -> None:
    assert 0.1 < len(make_jpeg((0,), 640, 480, 85)) / (640 * 480) < 0.4


@pytest.mark.parametrize("size", [(1, 1), (3, 500)])
def test_odd_sizes_can_be_drawn(size: tuple[int, int]) -> None:
    with Image.open(io.BytesIO(make_jpeg((0,), *size, 85))) as image:
        assert image.size == size


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_the_repeat_share_is_kept(share: float) -> None:
    options = BenchOptions(images=4, repeat_share=share)
    places = np.concatenate(plan_images(options, 0, 500))
    repeats = 1 - len(set(places.tolist())) / len(places)
    assert repeats == pytest.approx(share, abs=0.03)
    first_seen = [np.flatnonzero(places == identity)[0] for identity in range(places.max() + 1)]
    assert first_seen == sorted(first_seen)


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    options = BenchOptions(requests=4000, rate=5.0)
    gaps = np.diff(arrival_times(options))
    assert arrival_times(options)[0] == 0
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() == pytest.approx(0.2, rel=0.1)
    assert arrival_times(options) == arrival_times(options)
