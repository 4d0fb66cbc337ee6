"""A timeline's stages against the clock of whoever asked."""

import http.client
import io
import json
import time
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from tests.journey.messages import image
from tests.served import ANSWER_SECONDS, Served, chat_body

NUM_REQUESTS = 100
MOST_APART = 0.05  # of the client's time to the first token


def test_the_stages_of_a_hundred_timelines_add_up_to_the_clients_time_to_first_token(served: Served) -> None:
    told = seen = 0.0
    stages: set[str] = set()
    connection = http.client.HTTPConnection(urlsplit(served.url).netloc, timeout=ANSWER_SECONDS)
    for number in range(NUM_REQUESTS):
        parts = [noise(number), "What is this?"] if number % 2 else ["Count from 1 to 20. " * 20]
        seconds, request_id = time_to_first_token(connection, *parts)
        timeline = served.http.get(f"/v1/requests/{request_id}/timeline").json()
        assert timeline["state"] in ("finished", "decoding")
        told += sum(timeline["stages"].values())
        seen += seconds
        stages |= timeline["stages"].keys()
    connection.close()
    assert abs(told - seen) <= MOST_APART * seen, f"told {told:.3f} s of {seen:.3f} s"
    assert {"fetch", "hash", "sniff", "preprocess", "encode", "rows_transfer", "prefill", "respond"} <= stages


def time_to_first_token(connection: http.client.HTTPConnection, *parts: Any) -> tuple[float, str]:
    """And the request's id."""
    body = json.dumps(chat_body(*parts, stream=True, max_tokens=2)).encode()
    began = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    response = connection.getresponse()
    line = response.readline()
    seconds = time.perf_counter() - began
    assert (response.status, line[:6]) == (200, b"data: ")
    response.read()
    return seconds, response.headers["x-request-id"]


def noise(seed: int) -> dict[str, Any]:
    """A picture that nobody has seen."""
    pixels = np.random.default_rng(seed).integers(0, 255, (168, 224, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return image(file.getvalue())
