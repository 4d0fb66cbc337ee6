"""The whole journey on one GPU: three processes that hand rows and KV over by CUDA IPC, against transformers, bf16.

How equality is decided in bf16. Two correct programs round differently, so the reference is asked how sure it is:
transformers computes the logits of every answer twice, with two of its own attention implementations, and the largest
difference between the two anywhere is the noise. An answer of ours passes when, with our tokens as its prefix, every
token we took has a reference logit within twice the noise of the reference's best one: the two runs may each be off
by the noise, in opposite directions. Where the gap between the best two is wider, that means the same token.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tests.journey.conversations import Conversation, conversations
from tests.journey.messages import image, user
from tests.processes import ProcessCluster
from tests.reference import Reference
from triptych.config import TOPOLOGIES, load_settings
from triptych.journey import Role

pytestmark = pytest.mark.gpu

TOKENS = 48
MIB = 1 << 20
TABLES: Mapping[str, Mapping[str, object]] = {
    "encoder": {"arena_bytes": 64 * MIB},
    "language": {"kv_bytes": 256 * MIB},
    "transfer": {"lease_seconds": 10.0, "sweep_interval_seconds": 0.2, "checksums": True},
}
IDLE_SECONDS = 2.0  # the promise; asserted at five times as much

Record = Callable[[str, Any], None]


@pytest.fixture(scope="module", params=["random", "embedded"])
def model(request: pytest.FixtureRequest, checkpoint_folders: dict[str, Path]) -> Path:
    return checkpoint_folders[request.param]


def start(model: Path, folder: Path, topology: str) -> ProcessCluster:
    flags = {f"{table}.{name}": value for table, entries in TABLES.items() for name, value in entries.items()}
    flags |= {"serve.model": str(model), "serve.served_name": "m", "serve.topology": topology}
    flags |= {"serve.device": "cuda", "serve.dtype": "bfloat16", "router.port": 0}
    return ProcessCluster(load_settings(environment={}, flags=flags), folder, TABLES)


@pytest.fixture(scope="module", params=list(TOPOLOGIES))
def cluster(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProcessCluster]:
    running = start(model, tmp_path_factory.mktemp("workers"), request.param)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def references(model: Path) -> list[Reference]:
    """transformers with two attention implementations of its own."""
    made = [Reference(model, torch.bfloat16, attention) for attention in ("sdpa", "eager")]
    for reference in made:
        reference.model.to("cuda")
    return made


def ask(cluster: ProcessCluster, messages: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": messages, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    response = httpx.post(
        f"{cluster.url}/v1/chat/completions",
        json={**body, "return_token_ids": True, **fields},
        timeout=120,
        trust_env=False,
    )
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def logits_along(reference: Reference, conversation: Conversation, answer: list[int]) -> torch.Tensor:
    """[tokens, vocab] float32: the reference's logits for each token of an answer, given those before it."""
    inputs = reference.inputs(conversation.messages, conversation.pictures)
    prompt = inputs["input_ids"].shape[1]
    tail = torch.tensor([answer[:-1]], dtype=inputs["input_ids"].dtype)
    inputs["input_ids"] = torch.cat([inputs["input_ids"], tail], dim=1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        kinds = inputs["mm_token_type_ids"]
        inputs["mm_token_type_ids"] = torch.cat([kinds, torch.zeros_like(tail).to(kinds.dtype)], dim=1)
    with torch.inference_mode():
        logits = reference.model(**{name: value.to("cuda") for name, value in inputs.items()}).logits
    return logits[0, prompt - 1 :].float()


def test_greedy_tokens_are_those_of_generate_beyond_bf16_noise(
    cluster: ProcessCluster, references: list[Reference], record_property: Record
) -> None:
    asked = [*conversations(0), *conversations(1), *conversations(2)][:16]
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda conversation: ask(cluster, conversation.messages), asked))
    noise, shortfall, exact, compared = 0.0, 0.0, 0, 0
    for conversation, reply in zip(asked, replies, strict=True):
        answer = reply["choices"][0]["token_ids"]
        assert len(answer) == TOKENS
        if any(token in (5, 6) for token in answer):  # the reference would take a generated placeholder for an image
            continue
        first, second = (logits_along(reference, conversation, answer) for reference in references)
        noise = max(noise, float((first - second).abs().max()))
        taken = first.gather(1, torch.tensor(answer, device="cuda")[:, None])[:, 0]
        best = first.max(dim=1).values
        shortfall = max(shortfall, float((best - taken).max()))
        exact += int((best == taken).sum())
        compared += len(answer)
    record_property("bf16_noise_logits", noise)
    record_property("largest_shortfall_logits", shortfall)
    record_property("tokens_compared", compared)
    record_property("tokens_equal_to_argmax", exact)
    assert compared >= 8 * TOKENS
    assert shortfall <= 2 * noise
    assert exact >= 0.9 * compared


def test_rows_and_kv_travel_by_cuda_ipc(cluster: ProcessCluster) -> None:
    ask(cluster, conversations(0)[1].messages, max_tokens=4)
    roles = [worker.roles for worker in cluster.workers]
    logs = cluster.logs()
    if {Role.PREFILL} in roles and {Role.ENCODE} in roles:
        assert "embedding arena 1 opened by cuda_ipc" in logs
    if {Role.DECODE} in roles:
        assert "kv arena 2 opened by cuda_ipc" in logs
    assert "opened by shm" not in logs


def test_a_client_that_leaves_mid_stream_frees_everything(cluster: ProcessCluster, record_property: Record) -> None:
    body = {"model": "m", "messages": conversations(3)[2].messages, "max_tokens": 2000, "ignore_eos": True}
    url = f"{cluster.url}/v1/chat/completions"
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=60, trust_env=False) as response:
        for count, _ in enumerate(response.iter_lines()):
            if count == 12:
                break
    record_property("seconds_to_idle", seconds_until_idle(cluster, 5 * IDLE_SECONDS))


def test_three_hundred_mixed_requests_leave_everything_idle(cluster: ProcessCluster, record_property: Record) -> None:
    rng = random.Random(5)
    asked = conversations(6)

    def one(index: int) -> str:
        messages: Any = asked[index % len(asked)].messages
        timeout = httpx.Timeout(60)
        if index % 10 == 3:
            timeout = httpx.Timeout(60, read=rng.random() * 0.1 + 1e-3)
        if index % 10 == 7:
            messages = [user(image(b"no image at all"), "?")]
        body = {"model": "m", "messages": messages, "max_tokens": 8, "ignore_eos": True}
        try:
            url = f"{cluster.url}/v1/chat/completions"
            return str(httpx.post(url, json=body, timeout=timeout, trust_env=False).status_code)
        except httpx.ReadTimeout:
            return "left"

    began = time.monotonic()
    with ThreadPoolExecutor(25) as pool:
        outcomes = list(pool.map(partial(one), range(300)))
    record_property("requests_per_second", 300 / (time.monotonic() - began))
    assert outcomes.count("400") == 30
    assert outcomes.count("200") + outcomes.count("left") == 270
    assert outcomes.count("200") >= 240
    record_property("seconds_to_idle", seconds_until_idle(cluster, 20))


def seconds_until_idle(cluster: ProcessCluster, limit: float) -> float:
    began = time.monotonic()
    while busy := cluster.busy():
        assert time.monotonic() - began < limit, f"still busy after {limit} s: {busy}"
        time.sleep(0.02)
    return time.monotonic() - began
