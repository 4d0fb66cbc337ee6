"""One server, of three worker processes that compute nothing, and one browser for all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browsing import started_browser
from tests.checkpoints import EMBEDDED
from tests.processes import ProcessCluster
from tools.browser import Browser, Tab
from triptych.config import load_settings

KEY = "operator-of-this-test"

_TABLES: dict[str, dict[str, object]] = {
    "serve": {"model": str(EMBEDDED), "served_name": "m", "device": "cpu", "cpu_threads": 1},
    "router": {"port": 0, "log_level": "warning", "api_key": KEY, "self_test": False},
}


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[ProcessCluster]:
    """browser: none is started where there is no browser"""
    flags = {f"{table}.{name}": value for table, entries in _TABLES.items() for name, value in entries.items()}
    settings, folder = load_settings(environment={}, flags=flags), tmp_path_factory.mktemp("page")
    cluster = ProcessCluster(settings, folder, _TABLES, module="tests.page.worker")
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with started_browser() as browser:
        yield browser


@pytest.fixture
def empty_tab(browser: Browser, cluster: ProcessCluster) -> Iterator[Tab]:
    """Of somebody who comes for the first time; everything that it asks for must be the server's."""
    tab = browser.open()
    tab.resize(1280, 900)
    yield tab
    asked = [event["params"]["request"]["url"] for event in tab.events_of("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith((f"{cluster.url}/", "blob:", "data:"))] == []
    tab.close()


@pytest.fixture
def tab(empty_tab: Tab, cluster: ProcessCluster) -> Tab:
    """With the page, of somebody who has shown the key before."""
    show_page(empty_tab, cluster)
    return empty_tab


def show_page(tab: Tab, cluster: ProcessCluster) -> None:
    """To somebody who has shown the key before."""
    script = f'sessionStorage.setItem("triptych-key", "{KEY}")'
    tab.call("Page.addScriptToEvaluateOnNewDocument", source=script)
    tab.go(cluster.url)
    tab.wait("document.querySelectorAll('.worker[data-state=ready]').length === 3")


def red_circle() -> Path:
    return Path(__file__).parent.parent / "data" / "red-circle.png"
