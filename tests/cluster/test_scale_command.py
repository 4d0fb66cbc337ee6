"""`triptych scale` without a server: what may be typed, and what is shown."""

import pytest

from triptych.cluster.reconcile import State
from triptych.cluster.scale_command import details, summary, wishes
from triptych.cluster.view import View, WorkerView
from triptych.errors import InvalidRequest


def test_wishes_are_numbers_by_role() -> None:
    assert wishes(["encode=2", "decode=10"]) == {"encode": 2, "decode": 10}


@pytest.mark.parametrize("text", ["encode", "encode=", "=2", "encode=two", "encode=-1", "encode=²", "encode=1.5"])
def test_what_is_no_wish_is_told_with_what_would_be_one(text: str) -> None:
    with pytest.raises(InvalidRequest, match="write ROLE=NUMBER, as encode=2"):
        wishes([text])


def test_a_role_is_wished_for_once() -> None:
    with pytest.raises(InvalidRequest, match="encode is named twice"):
        wishes(["encode=1", "encode=2"])


def test_what_is_shown_is_what_is_not_simply_ready() -> None:
    view = View(
        topology="e+pd",
        counts={"encode": 2, "pd": 1},
        workers=(
            WorkerView("encode-0", "encode", State.READY),
            WorkerView("encode-1", "encode", State.STARTING, "for 3 s"),
            WorkerView("pd-0", "pd", State.READY),
            WorkerView("pd-1", "pd", State.DRAINING),
        ),
        failures={"encode-2": "no such folder"},
    )
    told = view.told(joining=frozenset({"pd-0"}))
    assert summary(told) == "encode 1 of 2, pd 0 of 1"
    assert details(told) == [
        "  encode-1 starting (for 3 s)",
        "  pd-0 joining",
        "  pd-1 draining",
        "  encode-2 has failed: no such folder",
    ]
    assert not told["settled"]


def test_it_is_settled_when_everybody_is_ready_and_nobody_more_is_there() -> None:
    ready = WorkerView("epd-0", "epd", State.READY)
    assert View("epd", {"epd": 1}, (ready,)).told()["settled"]
    assert not View("epd", {"epd": 1}, (ready,)).told(joining=frozenset({"epd-0"}))["settled"]
    assert not View("epd", {"epd": 2}, (ready,)).told()["settled"]
    assert not View("epd", {"epd": 1}, (ready, WorkerView("epd-1", "epd", State.STOPPING))).told()["settled"]
