"""Weights and KV in 8 bits over HTTP: the tokens do not depend on whether KV has travelled and was repacked."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.journey.conversations import conversations
from tests.processes import ProcessCluster
from triptych.config import MIB, load_settings
from triptych.journey import Role

TOKENS = 24
SECONDS = 120.0
ASKED = conversations(0)[:4]


@contextmanager
def running(
    model: Path, folder: Path, topology: str, own: dict[Role, Any], **language: Any
) -> Iterator[ProcessCluster]:
    folder.mkdir()
    tables: dict[str, dict[str, Any]] = {
        "serve": {"model": str(model), "served_name": "m", "device": "cpu", "cpu_threads": 1, "topology": topology},
        "router": {"port": 0, "status_interval_seconds": 0.2},
        "encoder": {"arena_bytes": 32 * MIB},
        "language": {"kv_bytes": 16 * MIB, "prefill_chunk_tokens": 64, "landing_bytes": 16 * MIB, **language},
        "transfer": {"checksums": True},
    }
    flags = {f"{table}.{name}": value for table, entries in tables.items() for name, value in entries.items()}
    cluster = ProcessCluster(load_settings(environment={}, flags=flags), folder, tables, own=own)
    try:
        yield cluster
    finally:
        cluster.stop()


def answers(cluster: ProcessCluster) -> list[list[int]]:
    found = []
    with closing(httpx.Client(timeout=SECONDS, trust_env=False)) as client:
        for asked in ASKED:
            body = {"model": "m", "messages": list(asked.messages), "max_tokens": TOKENS, "temperature": 0}
            body |= {"ignore_eos": True, "return_token_ids": True}
            response = client.post(f"{cluster.url}/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text
            found.append(list(response.json()["choices"][0]["token_ids"]))
    return found


def test_tokens_are_those_of_one_process_where_kv_is_handed_on(
    checkpoint_folders: dict[str, Path], tmp_path: Path
) -> None:
    model, small = checkpoint_folders["random"], {"kv_dtype": "fp8", "weights": "fp8"}
    with running(model, tmp_path / "one", "epd", {}, **small) as one:
        wanted = answers(one)
    own = {Role.DECODE: {"language": {"block_size": 32}}}
    with running(model, tmp_path / "three", "e+p+d", own, **small) as three:
        assert answers(three) == wanted
    assert len({tuple(each) for each in wanted}) == len(ASKED)
