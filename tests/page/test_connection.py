"""The page when its server is silent, unreadable or gone, and what is left of a key. Each test has a tab of its own."""

import socket
from collections.abc import Iterator

import pytest

from tests.checkpoints import EMBEDDED
from tests.page.accessibility import flaws
from tests.page.conftest import KEY
from tests.processes import ProcessCluster
from tools.browser import Browser, Tab
from triptych.config import RouterSettings, Settings
from triptych.models.card import load_card
from triptych.router.server import RouterServer

LIVE = "/v1/cluster/live"
_READY = "document.querySelectorAll('.worker[data-state=ready]').length === 3"
_ASKS_FOR_A_KEY = "!document.getElementById('key').hidden && document.activeElement.id === 'key-field'"


def state_of(tab: Tab, wanted: str) -> str:
    """What the head of the page says, once it is in that state."""
    health = "document.getElementById('health')"
    words: str = tab.wait(f"{health}.dataset.state === '{wanted}' && {health}.textContent")
    return words


def spoil_answers(tab: Tab, milliseconds: int) -> None:
    """The page can read none for so long, and each time begins another connection."""
    script = """(() => {
      const parse = JSON.parse;
      JSON.parse = () => { throw new Error("no JSON"); };
      setTimeout(() => { JSON.parse = parse; }, %d);
    })()"""
    tab.evaluate(script % milliseconds)


def said(tab: Tab) -> str:
    words: str = tab.evaluate("document.getElementById('said').textContent")
    return words


def test_a_server_that_takes_a_request_and_says_nothing_is_given_up(tab: Tab, cluster: ProcessCluster) -> None:
    tab.call("Fetch.enable", patterns=[{"urlPattern": f"*{LIVE}"}])  # such requests wait until they are let through
    tab.go(cluster.url)
    assert state_of(tab, "lost") == "No connection: the server has fallen silent"
    assert said(tab) == "No connection: the server has fallen silent"
    assert flaws(tab) == []
    tab.call("Fetch.disable")
    tab.wait(_READY)
    assert said(tab) == "The connection is back"
    assert not tab.evaluate("document.getElementById('triptych').classList.contains('stale')")


def test_answers_that_cannot_be_read_leave_no_connection_behind(tab: Tab) -> None:
    spoil_answers(tab, 2500)
    assert state_of(tab, "lost") == "No connection: no JSON"
    state_of(tab, "well")
    tab.evaluate("new Promise((resolve) => setTimeout(resolve, 500))")
    sent = [event["params"] for event in tab.events_of("Network.requestWillBeSent")]
    asked = {each["requestId"] for each in sent if each["request"]["url"].endswith(LIVE)}
    over = {
        event["params"]["requestId"]
        for method in ("Network.loadingFinished", "Network.loadingFailed")
        for event in tab.events_of(method)
    }
    assert len(asked) > 2
    assert len(asked - over) == 1


def test_the_rate_of_tokens_goes_on_behind_a_lost_connection(tab: Tab) -> None:
    points = "document.querySelector('#gauges .line').getAttribute('d').split('L').length"
    before = tab.wait(f"({points}) >= 5 && ({points})")
    spoil_answers(tab, 1500)
    state_of(tab, "lost")
    state_of(tab, "well")
    assert tab.evaluate(points) > before


def test_a_forgotten_key_takes_with_it_what_it_has_shown(empty_tab: Tab, cluster: ProcessCluster) -> None:
    tab = empty_tab
    tab.go(cluster.url)
    tab.wait(_ASKS_FOR_A_KEY)
    tab.type(KEY)
    tab.press("Enter")
    tab.wait(_READY)
    tab.events_of("Page.loadEventFired", take=True)
    tab.evaluate("document.getElementById('forget').click()")
    tab.wait_event("Page.loadEventFired")
    tab.wait(_ASKS_FOR_A_KEY)
    assert tab.evaluate("sessionStorage.length") == 0
    assert tab.evaluate("document.querySelectorAll('.worker, #requests tr').length") == 0


def test_a_browser_that_keeps_nothing_has_the_key_while_the_page_is_there(
    empty_tab: Tab, cluster: ProcessCluster
) -> None:
    tab = empty_tab
    denied = "get() { throw new DOMException('denied', 'SecurityError'); }"
    for name in ("sessionStorage", "localStorage"):
        source = f"Object.defineProperty(window, '{name}', {{ {denied} }})"
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=source)
    tab.go(cluster.url)
    tab.wait(_ASKS_FOR_A_KEY)
    tab.type(KEY)
    tab.press("Enter")
    tab.wait(_READY)


@pytest.fixture
def keyless() -> Iterator[str]:
    """URL of a server without keys and without workers, whose operators have a port of their own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        admin_port = free.getsockname()[1]
    settings = Settings(router=RouterSettings(port=0, admin_port=admin_port, log_level="warning"))
    server = RouterServer(settings, load_card(str(EMBEDDED), "float32"))
    yield f"http://127.0.0.1:{server.start()}"
    server.stop()


def test_whoever_is_shown_no_requests_is_told_where_they_are(browser: Browser, keyless: str) -> None:
    tab = browser.open()
    tab.go(keyless)
    assert state_of(tab, "down") == "No workers yet"
    assert tab.evaluate("document.getElementById('requests-empty').textContent") == (
        "Requests are shown at the operators’ port."
    )
    tab.close()
