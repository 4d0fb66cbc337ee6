"""A host that is gone without a word, in the middle of a copy out of it: the other one ends the request and goes on."""

import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.journey.conversations import conversation, conversations, picture
from tests.two_hosts.cluster import TwoHostCluster, tokens_of
from tests.two_hosts.hosts import Cable, Host, HostsUnavailable, two_hosts, wait_until
from tests.two_hosts.settings import COPY_SECONDS, LEASE_SECONDS, REQUEST_SECONDS, tables
from triptych.journey import Role

pytestmark = pytest.mark.skipif(
    find_spec("nixl_cu13") is None, reason="NIXL is not installed, and nothing else joins two hosts"
)

LARGEST = (448, 448)


@pytest.fixture
def own_hosts() -> Iterator[tuple[Host, Host, Cable]]:
    """Not the module's: one of them will be gone."""
    try:
        with two_hosts() as made:
            yield made
    except HostsUnavailable as error:
        pytest.skip(str(error))


def test_a_vanished_host_ends_the_request_and_holds_nothing_at_the_other(
    own_hosts: tuple[Host, Host, Cable], checkpoint_folders: dict[str, Path], tmp_path: Path
) -> None:
    left, right, cable = own_hosts
    places = [(left, frozenset({Role.ENCODE})), (right, frozenset({Role.PREFILL, Role.DECODE}))]
    with TwoHostCluster(places, right, checkpoint_folders["random"], tables(), tmp_path) as cluster:
        text = conversations(0)[0].messages
        language = cluster.workers[1]
        told = cluster.post(messages=text, max_tokens=8).result()
        assert tokens_of(told)
        cable.slow(left, bits_per_second=1_000_000)
        pictures = [picture(7000 + index, LARGEST) for index in range(4)]
        before, began = cable.sent_bytes(left), time.monotonic()
        asking = cluster.post(messages=conversation("large", [*pictures, "Compare."]).messages, max_tokens=8)
        wait_until(lambda: cable.sent_bytes(left) - before > 150_000, REQUEST_SECONDS, "no transfer began")
        cable.cut()
        left.close()
        assert asking.result()["code"] in (502, 503, 504), asking.result()
        assert time.monotonic() - began < REQUEST_SECONDS
        wait_until(lambda: cluster.status(language).get("idle", False), LEASE_SECONDS + 1 + COPY_SECONDS, "still busy")
        assert cluster.status(language)["violation"] == ""
        again = cluster.post(messages=text, max_tokens=8).result()
        assert tokens_of(again) == tokens_of(told)
        refusal = cluster.post(messages=conversations(0)[1].messages, max_tokens=8).result()
        assert refusal["code"] == 503, refusal
