"""One cluster per variation, shared by all tests that want it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.journey.clusters import Clusters, Running, Variation
from tests.journey.conversations import picture, png
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


class _Pictures(BaseHTTPRequestHandler):
    """Serves /SEED.png."""

    def do_GET(self) -> None:
        seed = self.path.strip("/").removesuffix(".png")
        if not seed.isdigit():
            self.send_error(404)
            return
        body = png(picture(int(seed), (112, 84)))
        self.send_response(200)
        self.send_header("content-type", "image/png")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture(scope="session")
def image_server() -> Iterator[str]:
    """Address of a loopback web server with pictures."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Pictures)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
