"""The page in a real browser. The last test kills one of the workers."""

import os
import signal
import time

import httpx

from tests.browsing import complaints
from tests.page.accessibility import flaws, shows_focus, tree
from tests.page.conftest import KEY, red_circle
from tests.processes import ProcessCluster
from tools.browser import Tab
from triptych.stages import TIMED_STAGES

_FOCUS = "(document.activeElement.id || document.activeElement.className || document.activeElement.tagName)"
_ANSWER = "document.getElementById('answer-text')"


def press_until(tab: Tab, focused: str, most: int = 20) -> list[str]:
    """Presses Tab until this element has the focus, and tells all that have had it; each must show that it has."""
    seen: list[str] = []
    while focused not in seen and len(seen) < most:
        tab.press("Tab")
        seen.append(tab.evaluate(_FOCUS))
        assert shows_focus(tab), seen
    return seen


def background(tab: Tab) -> str:
    colour: str = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


def test_a_key_is_asked_for_and_kept_in_the_tab_alone(empty_tab: Tab, cluster: ProcessCluster) -> None:
    tab = empty_tab
    tab.go(cluster.url)
    tab.wait("!document.getElementById('key').hidden && document.activeElement.id === 'key-field'")
    assert flaws(tab) == []
    tab.type("wrong …")  # which is no header as it stands
    tab.press("Enter")
    assert tab.wait("document.getElementById('key-error').textContent") == (
        "the API key is missing or wrong (invalid_api_key)"
    )
    tab.type(KEY)
    tab.press("Enter")
    tab.wait("document.getElementById('key').hidden && document.querySelectorAll('.worker').length === 3")
    assert tab.evaluate("[Object.values(sessionStorage), Object.values(localStorage), document.cookie]") == [
        [KEY],
        [],
        "",
    ]
    assert KEY not in tab.evaluate("location.href")


def test_it_shows_the_cluster_and_whoever_cannot_see_it_is_told(tab: Tab) -> None:
    assert tab.evaluate("document.getElementById('health').textContent") == "All 3 workers ready"
    for role in ("encode", "prefill", "decode"):
        assert tab.evaluate(f"document.querySelectorAll('#{role}-workers .worker').length") == 1
    for scheme in ("light", "dark"):
        tab.prefer(prefers_color_scheme=scheme)
        assert flaws(tab) == []
    told = {(role, name) for role, name, _ in tree(tab)}
    assert {("heading", "Encode"), ("heading", "Prefill"), ("heading", "Decode"), ("meter", "Arena in use")} <= told
    assert complaints(tab) == []


def test_a_question_about_a_picture_is_asked_with_the_keyboard_alone(tab: Tab) -> None:
    tab.catch_files()
    seen = press_until(tab, "choose")
    assert seen[0] == "skip"  # past everything, to the question
    tab.press("Enter")
    tab.choose_files([red_circle()])
    tab.wait("document.getElementById('preview').naturalWidth > 0")
    assert press_until(tab, "question") == ["sample", "remove", "question"]
    tab.press("Enter")  # the question that stands there: What is in the image?
    tab.wait(f"{_ANSWER}.textContent === 'red circle' && {_ANSWER}.getAttribute('aria-busy') === 'false'")
    tab.wait("document.querySelector('#answer-bar .bar')")
    label = tab.evaluate("document.querySelector('#answer-bar .bar').getAttribute('aria-label')")
    assert (label, True) in {(name, role in ("image", "img")) for role, name, _ in tree(tab)}
    pieces = tab.evaluate("[...document.querySelectorAll('#answer-bar title')].map((each) => each.textContent)")
    assert {"parse", "hash", "encode", "prefill", "KV to decode", "decode"} <= {
        each.rpartition(" ")[0] for each in pieces
    }
    assert {part.rpartition(" ")[0] for part in label.split("; ")[0].split(", ")} >= {"decode", "others"}
    assert tab.evaluate("document.querySelectorAll('#requests tr').length") >= 1
    tab.wait("document.querySelectorAll('.dot').length === 0")  # it has come out at the other end
    assert flaws(tab) == []
    assert complaints(tab) == []


def test_every_stage_that_is_timed_has_its_tier_and_words_of_its_own(tab: Tab) -> None:
    known = tab.evaluate("import('/page/stages.js').then(({ TIMED }) => [...TIMED])")
    assert [(name, shown["tier"]) for name, shown in known] == [(stage.name, stage.tier) for stage in TIMED_STAGES]
    assert len({shown["words"] for _, shown in known}) == len(TIMED_STAGES)
    legend = tab.evaluate("[...document.querySelectorAll('#bar-legend li')].map((each) => each.textContent)")
    assert legend == ["Router", "Encode", "Prefill", "Decode", "high: computing", "half: on the way", "low: waiting"]


def test_a_bar_is_drawn_to_scale_and_told_in_words(tab: Tab) -> None:
    script = """import("/page/stages.js").then(({ stageBar }) => {
      const stages = [["parse", 0.001], ["encode_queue", 0.1], ["encode", 0.3], ["rows_transfer", 0.1]];
      stages.push(["decode", 0.499], ["of_tomorrow", 0.2]);
      const bar = stageBar({ stages, seconds: 1.2, first_token: 0.6 }, 2);
      const pieces = [...bar.querySelectorAll(".span")].map((each) => [
        each.getAttribute("class"), ...["x", "width", "y", "height"].map((name) => Math.round(each.getAttribute(name))),
      ]);
      return [bar.getAttribute("role"), bar.getAttribute("aria-label"), pieces];
    })"""
    role, label, pieces = tab.evaluate(script)
    assert role == "img"
    assert label.replace("\xa0", " ") == (
        "encode queue 100 ms, encode 300 ms, embeddings to prefill 100 ms, decode 499 ms, something else 200 ms, "
        "others 1.0 ms; 1.2 s in all"
    )
    assert pieces == [
        ["span of-router", 0, 1, 0, 14],
        ["span of-encode", 1, 50, 11, 3],
        ["span of-encode", 51, 150, 0, 14],
        ["span of-prefill", 201, 50, 6, 8],
        ["span of-decode", 251, 250, 0, 14],
        ["span of-router", 500, 100, 0, 14],
    ]


def test_the_row_of_a_request_stays_the_same_while_others_come(tab: Tab) -> None:
    script = """import("/page/requests.js").then(({ Requests }) => {
      const [body, other] = [document.createElement("tbody"), document.createElement("p")];
      const requests = new Requests(body, other, other);
      const add = (number, seconds) => requests.add([{
        id: `${number}`, request_id: "r", at: 0, outcome: "finished", error: null, images: 0, prompt_tokens: 1,
        cached_tokens: 0, tokens: 1, seconds, first_token: seconds, per_token: null, stages: [["decode", seconds]],
      }]);
      const ids = () => [...body.children].map((row) => row.querySelector(".id").textContent);
      add(1, 0.1);
      const first = body.firstElementChild;
      add(2, 0.09);
      const found = [first.parentNode === body, ids()];
      for (let number = 3; number < 20; number++) add(number, 3);
      return [...found, first.parentNode === body, ids(), requests.whole];
    })"""
    latest = [str(number) for number in range(19, 7, -1)]
    assert tab.evaluate(script) == [True, ["2", "1"], False, latest, 5]


def test_an_error_is_told_as_the_api_words_it(tab: Tab) -> None:
    script = """(() => {
      const given = new DataTransfer();
      given.items.add(new File(["no picture at all"], "broken.png", { type: "image/png" }));
      document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: given }));
      document.getElementById("ask").requestSubmit();
    })()"""
    tab.evaluate(script)
    told = tab.wait("document.getElementById('ask-error').textContent")
    assert told.startswith("image 0: the file is not an image that is known here")
    assert told.endswith("(unsupported_image_format)")
    assert "alert" in {role for role, _, _ in tree(tab)}
    assert flaws(tab) == []


def test_the_theme_follows_the_system_until_it_is_chosen(tab: Tab, cluster: ProcessCluster) -> None:
    shown = {}
    for scheme in ("light", "dark"):
        tab.prefer(prefers_color_scheme=scheme)
        shown[scheme] = background(tab)
    assert shown["light"] != shown["dark"]
    press_until(tab, "theme")
    for chosen, expected in (("light", "light"), ("dark", "dark"), ("system", "dark"), ("light", "light")):
        tab.press(" ")
        assert tab.evaluate("document.activeElement.textContent") == f"Theme: {chosen}"
        assert background(tab) == shown[expected]
    tab.go(cluster.url)
    assert background(tab) == shown["light"]


def test_it_fits_a_telephone_and_keeps_still_for_those_who_want_that(tab: Tab) -> None:
    tab.prefer(prefers_reduced_motion="reduce")
    tab.resize(360, 800)
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= 360
    tab.evaluate("document.getElementById('ask').requestSubmit()")
    tab.wait("document.querySelectorAll('#requests tr').length >= 1")
    assert tab.evaluate("document.getAnimations().length") == 0
    assert flaws(tab) == []


def test_a_killed_worker_is_shown_within_three_seconds(tab: Tab, cluster: ProcessCluster) -> None:
    known = httpx.get(f"{cluster.url}/v1/cluster", headers={"authorization": f"Bearer {KEY}"}, trust_env=False).json()
    [worker] = [worker for worker in known["workers"] if worker["roles"] == ["prefill"]]
    began = time.monotonic()
    os.kill(worker["pid"], signal.SIGKILL)
    tab.wait("document.querySelector('#prefill-workers .worker').dataset.state !== 'ready'", seconds=3)
    assert time.monotonic() - began < 3
    assert tab.evaluate("document.getElementById('health').textContent") == "2 of 3 workers ready; no prefill"
    assert tab.evaluate("document.getElementById('said').textContent") == f"{worker['worker_id']} is not answering"
    assert flaws(tab) == []
