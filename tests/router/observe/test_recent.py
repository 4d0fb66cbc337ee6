"""The latest requests of a router: the one place where they are kept, for timelines and for the live page."""

import time

import pytest

from tests.router.requests import text_request, tokens_of
from triptych.errors import TimelineExpired
from triptych.router.api.usage import usage_of
from triptych.router.observe.recent import Entry, RecentRequests
from triptych.router.observe.timeline import Span, Timeline
from triptych.router.page.rows import ended_row, running_row, stages
from triptych.router.pipeline.request import Request
from triptych.stages import Stage

ROOM = 1 << 20  # bytes


def ended(recent: RecentRequests, name: str, tenant: str = "", tokens: int = 0) -> Entry:
    request = text_request()
    recent.begin(request, name, tenant, "/v1/chat/completions")
    return end(recent, request, tokens)


def end(recent: RecentRequests, request: Request, tokens: int = 0) -> Entry:
    if tokens:
        request.deliver(tokens_of([7] * tokens))
    return recent.end(request, usage_of(request, tokens), None)


def test_requests_that_share_an_id_are_all_told_of_and_the_last_one_is_found() -> None:
    recent = RecentRequests(8, ROOM)
    entries = [ended(recent, "shared") for _ in range(3)]
    assert [*recent.ended(0, 8)] == entries
    assert recent.find("shared", "", of_all=False) is entries[-1]
    assert recent.find("shared", "", of_all=True) is entries[-1]
    others = [ended(recent, str(number)) for number in range(7)]
    assert [*recent.ended(0, 8)] == [entries[-1], *others]  # two have made room, and the id still is found
    assert recent.find("shared", "", of_all=False) is entries[-1]
    ended(recent, "one more")
    with pytest.raises(TimelineExpired):
        recent.find("shared", "", of_all=False)


def test_each_is_told_once_of_what_has_ended_since_he_looked() -> None:
    recent = RecentRequests(8, ROOM)
    for number in range(5):
        ended(recent, str(number), tenant="even" if number % 2 == 0 else "odd")
    assert [entry.id for entry in recent.ended(2, 8)] == ["2", "3", "4"]
    assert [entry.id for entry in recent.ended(0, 2)] == ["3", "4"]
    assert [entry.id for entry in recent.ended(0, 8, "odd")] == ["1", "3"]
    assert [*recent.ended(recent.num_ended, 8)] == []


def test_tokens_are_counted_by_whose_they_are_while_they_come_and_for_good() -> None:
    recent = RecentRequests(1, ROOM)
    running = text_request()
    entry = recent.begin(running, "running", "one", "/v1/chat/completions")
    running.deliver(tokens_of([5, 6], finish=""))
    ended(recent, "a", "one", tokens=3)
    ended(recent, "b", "two", tokens=4)  # "a" has made room
    assert (recent.num_generated(), recent.num_generated("one"), recent.num_generated("two")) == (9, 5, 4)
    assert [each.id for each in recent.running("one")] == ["running"]
    assert [*recent.running("two")] == []
    assert running_row(entry)["tokens"] == 2
    end(recent, running)
    assert recent.num_generated("one") == 5
    assert ended_row(entry)["tokens"] == 2


def entry_of(spans: list[Span], first_token: float | None, seconds: float, state: Stage = Stage.FINISHED) -> Entry:
    """One that is over, and whose time went like this."""
    request = text_request()
    request.timeline = Timeline(started_at=time.perf_counter() - seconds)
    entry = RecentRequests(1, ROOM).begin(request, "a", "", "/v1/chat/completions")
    entry.request, entry.state, entry.seconds = None, str(state), seconds
    entry.timeline.spans, entry.timeline.first_token = spans, first_token
    return entry


PROMPT = [Span("parse", 0.0, 0.1), Span("prefill_queue", 0.2, 0.5, "p"), Span("prefill", 0.5, 0.9, "p")]


def rounded(entry: Entry) -> list[tuple[str, float]]:
    return [(stage, round(seconds, 6)) for stage, seconds in stages(entry)]


def test_stages_of_a_request_go_on_behind_its_first_token_until_it_was_over() -> None:
    later = [Span("respond", 1.0, 1.1), Span("handover", 0.95, 1.2, "d")]
    later += [Span("first_decode", 1.25, 1.5, "d"), Span("decode", 1.5, 3.0, "d")]
    found = rounded(entry_of([*PROMPT, *later], first_token=1.0, seconds=3.25))
    assert found == [
        *(("parse", 0.1), ("wire", 0.2), ("prefill_queue", 0.3), ("prefill", 0.4)),
        *(("handover", 0.2), ("wire", 0.05), ("first_decode", 0.25), ("decode", 1.5), ("router", 0.25)),
    ]
    assert sum(seconds for _, seconds in found) == pytest.approx(3.25)


def test_a_short_hand_over_that_clocks_put_ahead_of_the_first_token_is_behind_it() -> None:
    early = Span("handover", 0.95, 0.99, "d", off_by=0.06)
    found = rounded(entry_of([*PROMPT, early, Span("decode", 1.1, 2.0, "d")], first_token=1.0, seconds=2.0))
    assert found[-3:] == [("handover", 0.04), ("wire", 0.06), ("decode", 0.9)]


def test_a_request_that_was_tried_again_has_those_stages_twice_and_its_first_token_once() -> None:
    first = [Span("handover", 1.0, 1.2, "d"), Span("decode", 1.2, 2.0, "d")]
    again = [Span("place", 2.0, 2.1), Span("prefill", 2.2, 2.5, "p"), Span("decode", 2.5, 3.0, "d")]
    entry = entry_of([*PROMPT, *first, *again], first_token=1.0, seconds=3.0)
    names = [stage for stage, _ in stages(entry)]
    assert names == [
        *("parse", "wire", "prefill_queue", "prefill"),
        *("handover", "decode", "place", "wire", "prefill"),
    ]
    assert dict(rounded(entry)[4:])["decode"] == pytest.approx(1.3)
    assert sum(seconds for _, seconds in stages(entry)) == pytest.approx(3.0)
    assert ended_row(entry)["first_token"] == 1.0


def test_a_request_without_a_token_shows_how_far_it_came() -> None:
    entry = entry_of(PROMPT[:2], first_token=None, seconds=60.0, state=Stage.FAILED)
    assert rounded(entry) == [("parse", 0.1), ("wire", 59.6), ("prefill_queue", 0.3)]
    assert ended_row(entry)["per_token"] is None


def test_the_time_of_a_token_is_that_of_a_step_of_all_choices_and_not_of_a_slow_client() -> None:
    spans = [*PROMPT, Span("handover", 1.0, 1.1, "d"), Span("decode", 1.2, 3.0, "d")]
    entry = entry_of(spans, first_token=1.0, seconds=60.0)
    entry.choices, entry.generated_tokens = 2, 10
    assert ended_row(entry)["per_token"] == pytest.approx(2.0 / 4)
