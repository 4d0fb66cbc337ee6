"""Where Ray puts workers, on two nodes of one machine; the workers here only tell where they are."""

from collections.abc import Iterator

import pytest
import ray
from ray.cluster_utils import Cluster

from triptych.cluster.hiring import Hiring
from triptych.config import ServeSettings, Settings
from triptych.journey import Role

COUNTS = {"encode": 1, "prefill": 1, "decode": 1}
TIERS = {f"triptych_{role}": 3 for role in Role}
ANSWER_SECONDS = 60.0  # a liveness bound
SHORT_SECONDS = 1.0


class Placed:
    """In a worker's place."""

    def __init__(self, worker_id: str, *_: object) -> None:
        self._worker_id = worker_id

    def node(self) -> str:
        node: str = ray.get_runtime_context().get_node_id()
        return node


@pytest.fixture(scope="module", autouse=True)
def nodes() -> Iterator[None]:
    """Two, with places for three workers of each tier on either."""
    cluster = Cluster()
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, resources=TIERS, include_dashboard=False, object_store_memory=100 << 20)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


class Hired:
    """Workers by their ids; a context manager that ends them."""

    def __init__(self, **serve: object) -> None:
        settings = Settings(serve=ServeSettings(device="cpu", **serve))  # type: ignore[arg-type]
        self.hiring = Hiring(settings, 0.0, COUNTS, actor=Placed)
        self.actors = {f"{role}-0": self.hiring.hire(f"{role}-0", frozenset({role})) for role in Role}

    def add(self, worker_id: str, role: Role) -> None:
        self.actors[worker_id] = self.hiring.hire(worker_id, frozenset({role}))

    def end(self, worker_id: str) -> None:
        ray.kill(self.actors.pop(worker_id))
        self.hiring.release(worker_id)

    def nodes(self) -> list[str]:
        return list(ray.get([actor.node.remote() for actor in self.actors.values()], timeout=ANSWER_SECONDS))

    def __enter__(self) -> "Hired":
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self.actors.values():
            ray.kill(actor)
        self.hiring.close()


@pytest.mark.parametrize("pin_tiers", [False, True])
@pytest.mark.parametrize(("placement", "num_nodes"), [("same_node", 1), ("pack", 1), ("spread", 2)])
def test_workers_lie_on_nodes_as_settings_say(placement: str, num_nodes: int, pin_tiers: bool) -> None:
    with Hired(placement=placement, pin_tiers=pin_tiers) as hired:
        assert len(set(hired.nodes())) == num_nodes


def test_who_is_added_to_one_node_goes_there_or_waits_for_room() -> None:
    with Hired(placement="same_node", pin_tiers=True) as hired:
        for index in (1, 2):
            hired.add(f"encode-{index}", Role.ENCODE)
        assert len(set(hired.nodes())) == 1
        hired.add("encode-3", Role.ENCODE)
        waiting = [hired.actors["encode-3"].node.remote()]
        assert ray.wait(waiting, timeout=SHORT_SECONDS)[0] == [], "three is all that this node takes of a tier"
        hired.end("encode-1")
        assert set(ray.get(waiting, timeout=ANSWER_SECONDS)) == set(hired.nodes())


def test_one_that_ends_leaves_its_place_to_the_next() -> None:
    with Hired(placement="same_node") as hired:
        (node,) = set(hired.nodes())
        for _ in range(2):
            hired.end("decode-0")
            hired.add("prefill-1", Role.PREFILL)
            assert set(hired.nodes()) == {node}
            hired.end("prefill-1")
            hired.add("decode-0", Role.DECODE)
            assert set(hired.nodes()) == {node}
