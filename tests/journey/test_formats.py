"""Prefill and decode keep KV in blocks of different sizes: repacked on the way, and the tokens stay transformers'."""

import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.journey.conversations import Conversation, conversation, conversations, picture
from tests.processes import ProcessCluster
from tests.reference import Answer, Reference, compare
from triptych.config import MIB, load_settings
from triptych.journey import Role

TOKENS = 20
SECONDS = 120.0
LONGEST = 1000  # tokens of prompt and answer, as the settings say

# Blocks of prefill and of decode, whether claims carry checksums (they land first then), transports
PAIRS = [(16, 32, False, ()), (32, 16, True, ()), (24, 16, False, ("nixl",))]


def start(folder: Path, model: Path, own: dict[Role, Any], **transfer: Any) -> ProcessCluster:
    tables: dict[str, dict[str, Any]] = {
        "serve": {"model": str(model), "served_name": "m", "device": "cpu", "cpu_threads": 1},
        "router": {"port": 0, "status_interval_seconds": 0.2},
        "encoder": {"arena_bytes": 32 * MIB},
        "language": {
            "kv_bytes": 16 * MIB,
            "prefill_chunk_tokens": 64,
            "landing_bytes": 16 * MIB,
            "max_model_len": LONGEST,
        },
        "transfer": {"sweep_interval_seconds": 0.2, **transfer},
    }
    flags = {f"{table}.{name}": value for table, entries in tables.items() for name, value in entries.items()}
    return ProcessCluster(load_settings(environment={}, flags=flags), folder, tables, own=own)


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: f"{pair[0]} to {pair[1]}")
def cluster(
    request: pytest.FixtureRequest, checkpoint_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProcessCluster]:
    there, here, checksums, transports = request.param
    transfer: dict[str, Any] = {"checksums": checksums}
    if transports:
        pytest.importorskip("nixl_cu13")
        transfer |= {"transports": list(transports), "nixl_tls": "tcp"}
    own = {role: {"language": {"block_size": size}} for role, size in ((Role.PREFILL, there), (Role.DECODE, here))}
    made = start(tmp_path_factory.mktemp("formats"), checkpoint_folders["random"], own, **transfer)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def reference(checkpoint_folders: dict[str, Path]) -> Any:
    """What transformers answers, once per conversation."""
    model = Reference(checkpoint_folders["random"])

    @cache
    def answer(name: str) -> Answer:
        asked = next(asked for asked in ASKED if asked.name == name)
        return model.generate(asked.messages, asked.pictures, TOKENS)

    return answer


def about(name: str, *seeds: int, words: str) -> Conversation:
    return conversation(name, [*(picture(seed, (168, 140)) for seed in seeds), words])


# The second and third begin like the first, and go on inside and behind the block that its last picture ends in.
ASKED = [
    *conversations(0)[1:3],
    about("two", 801, 802, words="What is in them?"),
    about("two, other words", 801, 802, words="Which of these two pictures would you rather hang on your own wall?"),
    about("three", 801, 802, 803, words="What is in them?"),
    about("one", 801, words="What is in it, and what else?"),
]


def ask(cluster: ProcessCluster, asked: Conversation, **fields: Any) -> httpx.Response:
    body = {
        "model": "m",
        "messages": list(asked.messages),
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
        "return_token_ids": True,
        **fields,
    }
    return httpx.post(f"{cluster.url}/v1/chat/completions", json=body, timeout=SECONDS, trust_env=False)


def wait_idle(cluster: ProcessCluster) -> None:
    end = time.monotonic() + 10
    while busy := cluster.busy():
        assert time.monotonic() < end, busy
        time.sleep(0.1)


def test_tokens_are_those_of_transformers_whatever_is_cached_where(cluster: ProcessCluster, reference: Any) -> None:
    for asked in [*ASKED, *reversed(ASKED)]:
        response = ask(cluster, asked)
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        logprobs = tuple(entry["logprob"] for entry in choice["logprobs"]["content"])
        compare(reference(asked.name), tuple(choice["token_ids"]), logprobs)
    wait_idle(cluster)


def test_the_context_that_is_told_is_the_one_of_the_settings(cluster: ProcessCluster) -> None:
    (entry,) = httpx.get(f"{cluster.url}/v1/models", timeout=SECONDS, trust_env=False).json()["data"]
    assert entry["max_model_len"] == LONGEST
    refused = ask(cluster, ASKED[0], max_tokens=LONGEST)
    assert refused.status_code == 400
    assert "maximum context length is 1000 tokens" in refused.json()["error"]["message"]
