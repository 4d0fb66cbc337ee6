"""Between hosts shared memory is refused: media travel in chunks, and where no transport is left, requests say so."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.journey.conversations import conversations, png
from tests.journey.messages import image, user
from tests.two_hosts.cluster import TwoHostCluster
from tests.two_hosts.hosts import Cable, Host, wait_until
from tests.two_hosts.settings import LEASE_SECONDS, NEWS_SECONDS, tables
from triptych.journey import Role

ENCODE, LANGUAGE = frozenset({Role.ENCODE}), frozenset({Role.PREFILL, Role.DECODE})


@pytest.fixture(scope="module")
def cluster(
    hosts: tuple[Host, Host, Cable], checkpoint_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoHostCluster]:
    left, right, _ = hosts
    settings = tables(transports=["local", "cuda_ipc", "shm"])
    folder = tmp_path_factory.mktemp("refused")
    with TwoHostCluster(
        [(left, ENCODE), (right, LANGUAGE)], right, checkpoint_folders["random"], settings, folder
    ) as running:
        yield running


def test_media_of_several_chunks_reach_the_encoder_and_no_path_leads_back(cluster: TwoHostCluster) -> None:
    left = cluster.workers[0].host
    noise = np.random.default_rng(3).integers(0, 256, (900, 900, 3), dtype=np.uint8)  # png cannot make noise smaller
    data = png(Image.fromarray(noise))
    assert len(data) > 2 << 20
    answer = cluster.post(messages=[user(image(data), "?")], max_tokens=4).result()
    assert answer["code"] == 503, answer
    (encoder,) = [worker for worker in cluster.get("/v1/cluster").json["workers"] if worker["roles"] == ["encode"]]
    assert encoder["media"] == "chunks"
    assert cluster.status(cluster.workers[0])["gauges"]["encoder_items_encoded_total"] == 1
    assert left.shared_memory() == []
    cluster.wait_idle(LEASE_SECONDS + 1)


def test_the_reason_stands_in_the_log_once_and_in_status(cluster: TwoHostCluster) -> None:
    for conversation in conversations(0)[1:4]:
        assert cluster.post(messages=conversation.messages, max_tokens=4).result()["code"] == 503
    lines = [line for line in cluster.logs(Role.PREFILL).splitlines() if "no transport reaches embedding" in line]
    assert len([line for line in lines if " WARNING " in line]) == 1, lines
    assert "shm: the owner is on host" in lines[0]
    wait_until(lambda: bool(language_worker(cluster)["paths"]), NEWS_SECONDS, "the router was not told of the path")
    language = language_worker(cluster)
    (path,) = [path for path in language["paths"] if path["owner"] == cluster.workers[0].address]
    assert (path["owner_role"], path["consumer_role"], path["transport"]) == ("encode", "prefill", "none")
    assert [reason.split(":")[0] for reason in path["refused"]][:3] == ["local", "cuda_ipc", "shm"]
    (line,) = [line for line in cluster.get("/metrics").text.splitlines() if "transfer_pair_info{" in line]
    assert 'owner_role="encode"' in line
    assert 'transport="none"' in line
    assert line.endswith(" 1.0")


def test_prompts_without_media_are_none_the_worse_for_it(cluster: TwoHostCluster) -> None:
    answer = cluster.post(messages=conversations(0)[0].messages, max_tokens=4).result()
    assert answer["code"] == 200, answer
    cluster.wait_idle(LEASE_SECONDS + 1)


def language_worker(cluster: TwoHostCluster) -> dict[str, Any]:
    """As the router sees it."""
    workers: list[dict[str, Any]] = cluster.get("/v1/cluster").json["workers"]
    return next(worker for worker in workers if "prefill" in worker["roles"])
