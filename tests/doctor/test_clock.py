"""Another node's clock, by the Date of its answers."""

import time
from email.utils import formatdate

import pytest

from tests.web import QuietHandler, WebServer
from triptych.config import load_settings
from triptych.doctor.clock import Offset, Reading, judge_clock, look_clock, offset_of
from triptych.doctor.finding import Asked, Finding, Verdict

AHEAD_SECONDS = 90.0


class Dated(QuietHandler):
    def do_HEAD(self) -> None:
        self.answer(200, {}, b"")


class Ahead(Dated):
    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(time.time() + AHEAD_SECONDS, usegmt=True)


class Undated(Dated):
    def send_header(self, keyword: str, value: str) -> None:
        if keyword.lower() != "date":
            super().send_header(keyword, value)


def finding_at(peer: str) -> Finding:
    return look_clock(Asked(load_settings(environment={}), peer))


def test_a_clock_like_this_ones_is_fine() -> None:
    with WebServer(Dated) as server:
        assert finding_at(server.url).verdict is Verdict.OK


def test_a_clock_that_is_ahead_is_warned_of_with_how_much() -> None:
    with WebServer(Ahead) as server:
        finding = finding_at(server.url.removeprefix("http://"))
    assert finding.verdict is Verdict.WARN
    ahead = float(finding.seen.partition(" is ")[2].partition(" s")[0])
    assert abs(ahead - AHEAD_SECONDS) < 1.5


@pytest.mark.parametrize("late", [0.0, 0.5, 0.95])
def test_a_date_that_changes_tells_the_offset_whenever_the_server_writes_it(late: float) -> None:
    """Theirs is 0.3 s ahead of ours; each answer takes 0.02 s."""
    at = iter([10.0, 10.2, 10.4, 10.6, 10.8, 11.0, 11.2])

    def read() -> Reading:
        asked_at = next(at)
        return Reading(float(int(asked_at + 0.01 + 0.3 - late)), asked_at, asked_at + 0.02)

    offset = offset_of(read)
    assert abs(offset.seconds - 0.3) <= offset.error_seconds < 0.7


def test_a_clock_whose_second_does_not_change_is_known_to_a_second() -> None:
    moments = iter([0.0, 0.1, 9.0])
    assert offset_of(lambda: Reading(50.0, 50.0, 50.0), lambda: next(moments)) == Offset(1.0, 1.0)


@pytest.mark.parametrize(
    ("offset", "verdict"),
    [
        (Offset(0.4, 0.1), Verdict.OK),
        (Offset(-1.4, 0.5), Verdict.OK),
        (Offset(-1.6, 0.5), Verdict.WARN),
        (Offset(3600.0, 0.1), Verdict.WARN),
    ],
)
def test_only_what_is_certain_is_warned_of(offset: Offset, verdict: Verdict) -> None:
    assert judge_clock(offset, "http://there").verdict is verdict


def test_a_server_without_a_date_tells_no_time() -> None:
    with WebServer(Undated) as server:
        finding = finding_at(server.url)
    assert finding.verdict is Verdict.FAIL
    assert "its answer has no Date" in finding.seen


@pytest.mark.parametrize("peer", ["http://127.0.0.1:1", "ftp://127.0.0.1", "http://", "http://[::1"])
def test_a_peer_that_is_not_there_fails_with_the_reason(peer: str) -> None:
    assert finding_at(peer).verdict is Verdict.FAIL


def test_without_a_peer_nothing_is_compared() -> None:
    assert finding_at("").verdict is Verdict.OK
