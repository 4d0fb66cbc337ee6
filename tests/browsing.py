"""A real browser for tests, or a word why there is none."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tools.browser import NAMES, Browser, Tab, find_browser


@contextmanager
def started_browser() -> Iterator[Browser]:
    """Skips the test where there is none."""
    path = find_browser()
    if path is None:
        pytest.skip(f"there is no browser here, none of {', '.join(NAMES)}: apt-get install chromium")
    with Browser(path, os.environ) as browser:
        yield browser


def complaints(tab: Tab) -> list[str]:
    """What the browser has to complain of, in the console or elsewhere."""
    found = [event["params"]["exceptionDetails"]["text"] for event in tab.events_of("Runtime.exceptionThrown")]
    found += [str(event["params"]) for event in tab.events_of("Runtime.consoleAPICalled")]
    found += [str(event["params"]["entry"]) for event in tab.events_of("Log.entryAdded")]
    return found
