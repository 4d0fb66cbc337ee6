"""One cluster per variation, shared by all tests that want it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journey.clusters import Clusters, Running, Variation
from tests.journey.conversations import picture, png
from tests.web import QuietHandler, WebServer
from triptych.cluster.runtime import RayRuntime


@pytest.fixture(scope="session")
def ray_here() -> Iterator[None]:
    """One Ray for all clusters of the session: starting it takes longer than starting a cluster."""
    runtime = RayRuntime("local")
    yield
    runtime.close()


@pytest.fixture(scope="session")
def clusters(ray_here: None, checkpoint_folders: dict[str, Path]) -> Iterator[Clusters]:
    clusters = Clusters(checkpoint_folders)
    yield clusters
    clusters.stop()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, clusters: Clusters) -> Running:
    """The cluster named by the test's parameter; three tiers with the random model otherwise."""
    return clusters.get(getattr(request, "param", Variation()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one variation run one after another, so that each cluster starts once."""

    def variation(item: pytest.Item) -> Variation | None:
        if "cluster" not in getattr(item, "fixturenames", ()):
            return None
        callspec = getattr(item, "callspec", None)
        return callspec.params.get("cluster", Variation()) if callspec else Variation()

    def order(item: pytest.Item) -> tuple[int, str]:
        wanted = variation(item)
        return (0, "") if wanted is None else (1, str(wanted))

    items.sort(key=order)


class _Pictures(QuietHandler):
    """Serves /SEED.png."""

    def do_GET(self) -> None:
        seed = self.path.strip("/").removesuffix(".png")
        if not seed.isdigit():
            self.send_error(404)
            return
        self.answer(200, {"content-type": "image/png"}, png(picture(int(seed), (112, 84))))


@pytest.fixture(scope="session")
def image_server() -> Iterator[str]:
    """Address of a loopback web server with pictures."""
    with WebServer(_Pictures) as server:
        yield server.url
