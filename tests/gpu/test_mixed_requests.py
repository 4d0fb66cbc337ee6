"""A thousand random requests of every kind over HTTP, on one GPU: each gets what it should, and nothing is left."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.checkpoints import EMBEDDED
from tests.gpu.test_three_processes import seconds_until_idle
from tests.journey.conversations import conversations
from tests.journey.messages import image, user
from tests.processes import ProcessCluster
from triptych.config import load_settings

pytestmark = pytest.mark.gpu

REQUESTS = 1000
IN_FLIGHT = 32
MIB = 1 << 20
GROWTH_BYTES = 64 * MIB  # of the device's memory, by allocations that a first batch of some size keeps for the next

Record = Callable[[str, Any], None]
Body = dict[str, Any]

# Room for everybody, or for a third of what is in flight: then branches make room for one another and come back.
KV_BYTES = {"plenty": 256 * MIB, "short": 24 * MIB}


@pytest.fixture(scope="module", params=[("epd", "plenty"), ("epd", "short"), ("e+p+d", "short")], ids="-".join)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    topology, room = request.param
    tables: Mapping[str, Mapping[str, object]] = {
        "encoder": {"arena_bytes": 32 * MIB},
        "language": {"kv_bytes": KV_BYTES[room]},
        "transfer": {"lease_seconds": 10.0, "sweep_interval_seconds": 0.2},
    }
    flags = {f"{table}.{name}": value for table, entries in tables.items() for name, value in entries.items()}
    flags |= {"serve.model": str(EMBEDDED), "serve.served_name": "m", "serve.topology": topology}
    flags |= {"serve.device": "cuda", "serve.dtype": "bfloat16", "router.port": 0}
    running = ProcessCluster(load_settings(environment={}, flags=flags), tmp_path_factory.mktemp("workers"), tables)
    yield running
    running.stop()


def body_of(number: int, rng: random.Random) -> Body:
    """A request of some kind: how it samples, how long it is, what it carries, all drawn."""
    asked = conversations(rng.randrange(12))
    body: Body = {"model": "m", "messages": asked[rng.randrange(len(asked))].messages}
    body |= {"max_tokens": rng.choice([1, 2, 7, 16, 40, 90]), "ignore_eos": rng.random() < 0.8}
    kinds: list[Body] = [
        {"temperature": 0},
        {"temperature": 1.0, "seed": number, "top_p": 0.9, "top_k": 20, "min_p": 0.01},
        {"temperature": 0.7, "n": 3, "seed": number},
        {"temperature": 0, "frequency_penalty": 0.4, "presence_penalty": 0.2, "repetition_penalty": 1.1},
        {"temperature": 0, "logprobs": True, "top_logprobs": 3},
        {"temperature": 1.0, "seed": number, "logit_bias": {"9": -100, "10": 2.5}, "min_tokens": 1},
        {"temperature": 0, "stop": ["e", "the"]},
        {"temperature": 0, "return_token_ids": True, "priority": rng.randrange(3)},
    ]
    return body | rng.choice(kinds)


def ask(url: str, number: int) -> str:
    """What came of one request: ok, left (the client went away), or what the server said."""
    rng = random.Random(number)
    body, chance = body_of(number, rng), rng.random()
    if chance < 0.05:
        body["messages"] = [user(image(b"no image at all"), "?")]
    timeout = httpx.Timeout(120, read=0.002 + 0.1 * rng.random()) if 0.05 <= chance < 0.2 else httpx.Timeout(120)
    try:
        if chance > 0.6:
            return _stream(url, body, timeout, leave_after=rng.randrange(1, 9) if chance > 0.85 else None)
        response = httpx.post(url, json=body, timeout=timeout, trust_env=False)
    except httpx.ReadTimeout:
        return "left"
    if response.status_code == 200:
        choices = response.json()["choices"]
        return "ok" if len(choices) == body.get("n", 1) else f"{len(choices)} choices"
    return "refused image" if chance < 0.05 and response.status_code == 400 else response.text


def _stream(url: str, body: Body, timeout: httpx.Timeout, leave_after: int | None) -> str:
    with httpx.stream("POST", url, json=body | {"stream": True}, timeout=timeout, trust_env=False) as response:
        if response.status_code != 200:
            return response.read().decode()
        for count, line in enumerate(line for line in response.iter_lines() if line):
            if line == "data: [DONE]":
                return "ok"
            if line.startswith("event: error") or '"error"' in line:
                return line
            if leave_after is not None and count >= leave_after:
                return "left"
    return "a stream without an end"


def device_bytes(cluster: ProcessCluster) -> float:
    """Memory that the workers have allocated on the GPU."""
    text = httpx.get(f"{cluster.url}/metrics", trust_env=False).text
    return sum(float(value) for value in re.findall(r"^triptych:device_bytes\{[^}]*\} (\S+)$", text, re.MULTILINE))


def test_a_thousand_mixed_requests_leave_nothing(cluster: ProcessCluster, record_property: Record) -> None:
    url = f"{cluster.url}/v1/chat/completions"
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        list(pool.map(lambda number: ask(url, number), range(10_000, 10_150)))
        seconds_until_idle(cluster, 30)
        before = device_bytes(cluster)
        outcomes = Counter(pool.map(lambda number: ask(url, number), range(REQUESTS)))
    record_property("outcomes", dict(outcomes))
    record_property("seconds_to_idle", seconds_until_idle(cluster, 30))
    record_property("device_bytes_grown", device_bytes(cluster) - before)
    assert outcomes.keys() <= {"ok", "left", "refused image"}, outcomes
    assert outcomes["ok"] > 0.6 * REQUESTS
    assert outcomes["refused image"] > 0.02 * REQUESTS
    assert device_bytes(cluster) - before <= GROWTH_BYTES
