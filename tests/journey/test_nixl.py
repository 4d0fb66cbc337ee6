"""Three tiers that share no memory: everything between them goes over NIXL, and the tokens stay transformers'."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.journey.conversations import Conversation, conversations
from tests.processes import ProcessCluster
from tests.reference import Reference, compare
from triptych.config import MIB, load_settings

pytest.importorskip("nixl_cu13")

TOKENS = 24
SECONDS = 120.0


@pytest.fixture(scope="module")
def cluster(checkpoint_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    """Whatever lies scattered is packed, and nothing but NIXL is allowed."""
    tables: dict[str, dict[str, Any]] = {
        "serve": {"model": str(checkpoint_folders["random"]), "served_name": "m", "device": "cpu", "cpu_threads": 1},
        "router": {"port": 0, "status_interval_seconds": 0.2},
        "encoder": {"arena_bytes": 32 * MIB},
        "language": {"kv_bytes": 16 * MIB, "prefill_chunk_tokens": 64, "landing_bytes": 16 * MIB},
        "transfer": {
            "transports": ["nixl"],
            "nixl_tls": "tcp",
            "nixl_pack_below_bytes": 1 << 30,
            "checksums": True,
            "sweep_interval_seconds": 0.2,
            "nixl_window_bytes": MIB,
        },
    }
    flags = {f"{table}.{name}": value for table, entries in tables.items() for name, value in entries.items()}
    made = ProcessCluster(load_settings(environment={}, flags=flags), tmp_path_factory.mktemp("nixl"), tables)
    yield made
    made.stop()


def ask(cluster: ProcessCluster, asked: Conversation) -> tuple[tuple[int, ...], tuple[float, ...]]:
    body = {
        "model": "m",
        "messages": list(asked.messages),
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
        "return_token_ids": True,
    }
    response = httpx.post(f"{cluster.url}/v1/chat/completions", json=body, timeout=SECONDS, trust_env=False)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return tuple(choice["token_ids"]), tuple(entry["logprob"] for entry in choice["logprobs"]["content"])


def test_tokens_are_those_of_transformers_and_nothing_is_left_behind(
    cluster: ProcessCluster, checkpoint_folders: dict[str, Path]
) -> None:
    model = Reference(checkpoint_folders["random"])
    for asked in [*conversations(0)[1:4], *conversations(7)[1:3]]:
        wanted = model.generate(asked.messages, asked.pictures, TOKENS)
        compare(wanted, *ask(cluster, asked))
    assert cluster.logs().count("opened by nixl") >= 2  # rows by prefill, KV by decode
    end = time.monotonic() + 10
    while busy := cluster.busy():
        assert time.monotonic() < end, busy
        time.sleep(0.1)
