"""The live page of a real cluster in a real browser: a picture is asked about through the page's own box."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.browsing import complaints, started_browser
from tests.journey.clusters import Running
from tests.journey.test_equality import VARIATIONS
from tests.served import PICTURES
from tools.browser import Tab
from triptych.journey import Role

# One that others want too, so that it is there already: three tiers that answer as the model does.
[THREE_TIERS] = [each for each in VARIATIONS if (each.topology, each.model) == ("e+p+d", "embedded")]
SEEN_SECONDS = 3.0  # within which a worker that has died is shown

pytestmark = pytest.mark.parametrize("cluster", [THREE_TIERS], indirect=True, ids=str)

_ALL_READY = "document.querySelectorAll('.worker[data-state=ready]').length === 3"
_ENCODER = "document.querySelector('#encode-workers .worker').dataset.state"


@pytest.fixture
def tab(cluster: Running) -> Iterator[Tab]:
    with started_browser() as browser:
        tab = browser.open()
        tab.go(cluster.url)
        tab.wait(_ALL_READY)
        yield tab


def titles(tab: Tab, bar: str) -> set[str]:
    """The stages of a bar."""
    found = tab.evaluate(f"[...document.querySelectorAll('{bar} title')].map((each) => each.textContent)")
    return {each.rpartition(" ")[0] for each in found}


def test_a_picture_is_asked_about_and_its_time_and_a_lost_encoder_are_seen(tab: Tab, cluster: Running) -> None:
    tab.catch_files()
    tab.evaluate("document.getElementById('choose').focus()")
    tab.press("Enter")
    tab.choose_files([PICTURES / "red-circle.png"])
    tab.wait("document.getElementById('preview').naturalWidth > 0")
    tab.evaluate("document.getElementById('ask').requestSubmit()")
    answer = "document.getElementById('answer-text')"
    said = tab.wait(f"{answer}.getAttribute('aria-busy') === 'false' && {answer}.textContent", seconds=60)
    assert said.strip().rstrip(".").lower() == "red circle"
    tab.wait("document.querySelector('#answer-bar .bar')")
    wanted = {"hash", "preprocess", "encode", "embeddings to prefill", "prefill", "KV to decode"}
    for place in ("#answer-bar", "#requests tr:first-child"):
        shown = titles(tab, place)
        assert wanted <= shown
        assert shown & {"first decode", "decode"}, "what took no time has no bar: the few tokens may come at once"
    told = tab.evaluate("document.querySelector('#requests tr:first-child .bar').getAttribute('aria-label')")
    assert "encode" in told
    assert told.endswith("in all")

    [encoder] = [address for address in cluster.addresses() if Role.ENCODE in address.roles]
    os.kill(encoder.pid, signal.SIGKILL)
    tab.wait(f"{_ENCODER} !== 'ready'", seconds=SEEN_SECONDS)
    assert "no encode" in tab.evaluate("document.getElementById('health').textContent")
    cluster.wait_for_successor(encoder)
    tab.wait(_ALL_READY, seconds=60)
    assert complaints(tab) == []
    cluster.seconds_until_idle(20)
