"""The page in several tabs of one browser, which has six connections to a server for all of them together."""

import base64
from collections.abc import Iterator

import httpx
import pytest

from tests.page.conftest import KEY, show_page
from tests.processes import ProcessCluster
from tools.browser import Browser, Tab

CONNECTIONS = 6  # of one browser to one server, by HTTP/1.1
LIVE = "/v1/cluster/live"
_ANSWER = "document.getElementById('answer-text')"
_ROWS = "[...document.querySelectorAll('#requests .id')].map((each) => each.title)"


def ask(tab: Tab) -> None:
    tab.evaluate("document.getElementById('ask').requestSubmit()")
    tab.wait(f"{_ANSWER}.textContent === 'red circle' && {_ANSWER}.getAttribute('aria-busy') === 'false'")
    tab.wait("document.querySelector('#answer-bar .bar')")


@pytest.fixture
def tabs(browser: Browser, tab: Tab, cluster: ProcessCluster) -> Iterator[list[Tab]]:
    """More than there are connections, in one window; the last one is in sight."""
    tabs = [tab]
    while len(tabs) < CONNECTIONS + 2:
        tabs.append(browser.open(beside=tabs[-1]))
        show_page(tabs[-1], cluster)
    yield tabs
    for each in tabs[1:]:
        each.close()


def test_any_number_of_tabs_may_be_open_and_each_shows_what_it_has_missed_once_it_is_seen(tabs: list[Tab]) -> None:
    first, *_, last = tabs
    assert (first.evaluate("document.hidden"), last.evaluate("document.hidden")) == (True, False)
    before = first.evaluate(_ROWS)
    ask(last)
    newest = last.evaluate(_ROWS)[0]
    assert first.evaluate(_ROWS) == before
    first.show()
    rows = first.wait(f"document.querySelectorAll('#requests .id')[0]?.title === '{newest}' && {_ROWS}")
    assert rows == last.evaluate(_ROWS)
    assert len(set(rows)) == len(rows)
    assert first.evaluate("document.getElementById('health').textContent") == "All 3 workers ready"
    ask(first)


def test_an_answer_that_comes_while_nobody_looks_still_has_its_bar(browser: Browser, tab: Tab) -> None:
    tab.evaluate("document.getElementById('ask').requestSubmit()")
    other = browser.open(beside=tab)
    tab.wait(f"{_ANSWER}.textContent === 'red circle' && {_ANSWER}.getAttribute('aria-busy') === 'false'")
    assert tab.evaluate("document.hidden")
    tab.show()
    tab.wait("document.querySelector('#answer-bar .bar')")
    other.close()


def test_a_connection_that_ends_in_peace_tells_of_no_request_twice(tab: Tab, cluster: ProcessCluster) -> None:
    """Each one ends after ten minutes."""
    ask(tab)
    with httpx.stream(
        "GET", f"{cluster.url}{LIVE}", headers={"authorization": f"Bearer {KEY}"}, trust_env=False
    ) as feed:
        snapshot = next(line for line in feed.iter_lines() if line.startswith("data: "))
    tab.call("Fetch.enable", patterns=[{"urlPattern": f"*{LIVE}"}])
    tab.go(cluster.url)
    body = base64.b64encode(f"{snapshot}\n\n".encode()).decode()
    for _ in range(2):
        paused = tab.wait_event("Fetch.requestPaused")["params"]["requestId"]
        tab.events_of("Fetch.requestPaused", take=True)
        tab.call("Fetch.fulfillRequest", requestId=paused, responseCode=200, body=body)
    tab.wait_event("Fetch.requestPaused")  # both have been read
    rows = tab.evaluate(_ROWS)
    assert rows
    assert len(set(rows)) == len(rows)
    assert tab.evaluate("document.getElementById('health').textContent") == "All 3 workers ready"
