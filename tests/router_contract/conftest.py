"""One cluster and one web server for all cases."""

from collections.abc import Iterator

import pytest

from tests.router.conftest import anyio_backend, card, one_loop
from tests.served import PICTURES, PictureSite, Served, served_model

__all__ = ["anyio_backend", "card", "one_loop"]


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_model(tmp_path_factory.mktemp("contract")) as served:
        yield served


@pytest.fixture(scope="package")
def site() -> Iterator[PictureSite]:
    pages = {
        "/red-circle.png": (200, "image/png", (PICTURES / "red-circle.png").read_bytes()),
        "/page.png": (200, "image/png", b"<html><body>Not found</body></html>"),
    }
    with PictureSite(pages) as site:
        yield site
