"""What becomes of sets of workers, on a clock of its own, with whatever routers and workers may say meanwhile."""

import json
import random
from math import inf
from typing import Any

import pytest

from tests.cluster.test_reconcile import done, worker
from triptych.cluster.names import group_in, index_in, set_in, worker_name
from triptych.cluster.reconcile import Desired, Drain, Start, State, Stop, reconcile
from triptych.cluster.sets import (
    Facts,
    Phase,
    Report,
    Sets,
    changes,
    first_set,
    idle_sets,
    proceeded,
    proven_sets,
    reloaded,
    report_of,
    sets_as_values,
    sets_from_values,
    taken_back,
)
from triptych.errors import InvalidRequest

DRAIN_SECONDS = 60.0


def phases(sets: Sets) -> dict[int, str]:
    return {each.number: str(each.phase) for each in sets.each}


def went_on(sets: Sets, now: float = 0.0, **facts: Any) -> Sets:
    return proceeded(sets, Facts(**facts), now, DRAIN_SECONDS)


COMING = reloaded(first_set("a"), "b", until=100.0)
SHIFTED = went_on(COMING, proven=[2])


def test_a_new_set_serves_once_it_is_proven_and_the_one_before_leaves_once_nobody_needs_it() -> None:
    assert phases(went_on(COMING, now=99.0)) == {1: "serving", 2: "coming"}
    assert phases(SHIFTED) == {1: "finishing", 2: "serving"}
    assert SHIFTED.wanted == {1, 2}, "it is kept whole: requests may have to be tried again there"
    left = went_on(SHIFTED, idle=[1])
    assert phases(left) == {1: "leaving", 2: "serving"}
    assert left.wanted == {2}
    ended = went_on(left, empty=[1])
    assert (phases(ended), ended.previous, ended.serving.model) == ({2: "serving"}, "a", "b")


def test_one_that_finishes_leaves_in_time_whatever_it_has() -> None:
    assert phases(went_on(SHIFTED, now=DRAIN_SECONDS - 1)) == {1: "finishing", 2: "serving"}
    assert phases(went_on(SHIFTED, now=DRAIN_SECONDS)) == {1: "leaving", 2: "serving"}


def test_one_that_is_kept_stays_until_its_time_though_idle() -> None:
    kept = went_on(reloaded(first_set("a"), "b", until=100.0, keep_seconds=500.0), proven=[2])
    assert phases(went_on(kept, now=499.0, idle=[1])) == {1: "finishing", 2: "serving"}
    assert phases(went_on(kept, now=500.0, idle=[1])) == {1: "leaving", 2: "serving"}


@pytest.mark.parametrize(
    ("now", "facts", "reason"),
    [
        (100.0, {"waits": {2: "pd-0.2 starting"}}, "it was not ready in time: pd-0.2 starting"),
        (1.0, {"trouble": {2: "pd-0.2: no such folder"}}, "pd-0.2: no such folder"),
        (1.0, {"trouble": {2: "pd-0.2: wrong"}, "proven": [2]}, "pd-0.2: wrong"),
    ],
)
def test_one_that_does_not_come_up_is_given_up_and_nothing_else_changes(
    now: float, facts: dict[str, Any], reason: str
) -> None:
    given_up = went_on(COMING, now=now, **facts)
    assert phases(given_up) == {1: "serving", 2: "leaving"}
    assert given_up.trouble == f"set 2 with b was given up: {reason}"
    assert changes(COMING, given_up) == [given_up.trouble, "set 2 with b leaves"]
    assert reloaded(went_on(given_up, empty=[2]), "b", 200.0).each[-1].number == 3, "no number is used again"


def test_the_way_back_is_what_comes_given_up_or_the_one_before_while_it_is_whole() -> None:
    back = taken_back(COMING, until=inf)
    assert back is not None
    assert phases(back) == {1: "serving", 2: "leaving"}
    back = taken_back(SHIFTED, until=50.0)
    assert back is not None
    assert phases(back) == {1: "serving", 2: "finishing"}
    assert (back.serving.until, back.previous) == (inf, "b")
    assert taken_back(went_on(SHIFTED, idle=[1]), until=inf) is None, "its workers drain already"


def test_only_one_comes_at_a_time() -> None:
    with pytest.raises(InvalidRequest, match=r"set 2 with b is still coming; .* triptych reload --back"):
        reloaded(COMING, "c", 100.0)
    third = went_on(reloaded(SHIFTED, "c", 100.0), proven=[3])
    assert phases(third) == {1: "finishing", 2: "finishing", 3: "serving"}
    back = taken_back(third, until=inf)
    assert back is not None
    assert back.serving.model == "b", "the latest of those before"


def test_the_way_back_is_never_to_an_older_model_that_still_finishes() -> None:
    third = went_on(reloaded(SHIFTED, "c", 100.0), proven=[3])
    without_b = went_on(went_on(third, idle=[2]), empty=[2])
    assert (phases(without_b), without_b.previous) == ({1: "finishing", 3: "serving"}, "b")
    assert taken_back(without_b, until=inf) is None, "b has to come again"
    a_again = taken_back(SHIFTED, until=50.0)
    assert a_again is not None
    third = went_on(reloaded(a_again, "c", 100.0), proven=[3])
    assert phases(third) == {1: "finishing", 2: "finishing", 3: "serving"}
    back = taken_back(third, until=inf)
    assert back is not None
    assert back.serving.model == "a", "b came later, and had been taken back"


def test_what_is_written_down_can_be_read_again() -> None:
    sets = went_on(reloaded(first_set("a"), "b", until=100.0, keep_seconds=5.0), now=1.0, proven=[2])
    text = json.dumps(sets_as_values(sets, now=2.0))
    assert sets_from_values(json.loads(text), now=2.0) == sets
    assert sets_from_values(json.loads(text), now=1002.0).each[0].until == sets.each[0].until + 1000.0


def answer(turn: int, **sets: tuple[int, list[str]]) -> dict[str, Any]:
    """Of a router, of a turn: by set its requests and the workers that it has found right."""
    told = [
        {"set": int(name[1:]), "requests": requests, "ready": ready, "refused": {}}
        for name, (requests, ready) in sets.items()
    ]
    return {"turn": turn, "sets": told, "unusable": []}


def test_a_set_is_proven_where_every_router_has_found_every_worker_right() -> None:
    counts, ready = {"encode": 1, "pd": 1}, {2: {"encode": ["encode-0.2"], "pd": ["pd-0.2"]}}
    both, one = (0, ["encode-0.2", "pd-0.2"]), (0, ["encode-0.2"])
    assert proven_sets(counts, ready, [report_of([answer(1, s2=both), answer(1, s2=both)])]) == {2}
    for told in ([answer(1, s2=both), answer(1, s2=one)], [answer(1, s2=both), answer(1)], [answer(1, s2=both), None]):
        assert proven_sets(counts, ready, [report_of(told)]) == set()
    whole = report_of([answer(1, s2=both)])
    assert proven_sets(counts, ready, []) == set(), "nobody has said anything"
    assert proven_sets(counts, ready, [whole, Report()]) == set(), "another server's routers have not"
    assert proven_sets({"encode": 1, "pd": 2}, ready, [whole]) == set(), "one is still to come"


def test_a_set_is_idle_where_every_router_begins_elsewhere_and_has_nothing_left() -> None:
    none, some = (0, []), (3, [])
    idle = [answer(1, s1=none, s2=some), answer(1, s1=none, s2=some)]
    assert idle_sets(SHIFTED, [report_of(idle)]) == {1}
    for told in ([idle[0], answer(1, s1=some, s2=none)], [idle[0], answer(0, s1=none, s2=none)], [idle[0], None]):
        assert idle_sets(SHIFTED, [report_of(told)]) == set()
    assert idle_sets(SHIFTED, [report_of(idle), Report()]) == set()
    assert idle_sets(SHIFTED, []) == set(), "nobody has said anything"
    back = taken_back(SHIFTED, until=inf)
    assert back is not None
    before = report_of([answer(0, s1=some, s2=none)])
    assert idle_sets(back, [before]) == set(), "since then requests may have begun with the other"


def test_a_router_that_refuses_a_worker_or_cannot_read_the_model_says_why() -> None:
    refused = answer(1, s2=(0, []))
    refused["sets"][0]["refused"] = {"pd-0.2": "it gave a wrong answer"}
    assert report_of([refused]).trouble == {2: "pd-0.2: it gave a wrong answer"}
    unread = answer(1) | {"unusable": [{"set": 2, "reason": "no tokenizer"}]}
    assert report_of([answer(1), unread]).trouble == {2: "a router cannot read it: no tokenizer"}


def test_each_set_has_its_own_workers() -> None:
    assert (worker_name("encode", 3), worker_name("encode", 3, 2)) == ("encode-3", "encode-3.2")
    assert [(group_in(each), index_in(each), set_in(each)) for each in ("pd-12", "pd-12.30")] == [
        ("pd", 12, 1),
        ("pd", 12, 30),
    ]
    desired = Desired({"pd": 2}, sets=frozenset({1, 2}))
    here = [worker("pd-0"), worker("pd-1"), worker("pd-1.2")]
    assert reconcile(desired, here, {}, 0.0) == [Start("pd-0.2", "pd")]


def test_all_of_a_set_that_leaves_go_the_last_ready_one_too() -> None:
    assert done({"pd": 1}, worker("pd-0"), worker("pd-0.2"), worker("pd-1.2", State.STARTING)) == [
        Drain("pd-0.2"),
        Stop("pd-1.2"),
    ]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_one_set_serves_and_none_leaves_that_a_request_may_need(seed: int) -> None:
    chance = random.Random(seed)
    sets, now = first_set("m0"), 0.0
    for step in range(200):
        now += chance.choice((0.1, 5.0, 50.0))
        before = sets
        wish = chance.random()
        if wish < 0.1 and not sets.in_phase(Phase.COMING):
            sets = reloaded(sets, f"m{step}", now + 100.0, chance.choice((0.0, 200.0)))
        elif wish < 0.15:
            sets = taken_back(sets, now + DRAIN_SECONDS) or sets
        wished = sets
        numbers = [each.number for each in sets.each]
        idle = {number for number in numbers if chance.random() < 0.3} - {sets.serving.number}
        facts = Facts(
            proven={number for number in numbers if chance.random() < 0.3},
            idle=idle,
            trouble={number: "broken" for number in numbers if chance.random() < 0.05},
            empty={number for number in numbers if chance.random() < 0.5},
        )
        sets = proceeded(sets, facts, now, DRAIN_SECONDS)
        assert len(sets.in_phase(Phase.SERVING)) == 1
        assert len(sets.in_phase(Phase.COMING)) <= 1
        assert len({each.number for each in sets.each}) == len(sets.each)
        for each in wished.in_phase(Phase.FINISHING):
            if phases(sets).get(each.number) == "leaving":
                assert each.number in idle or now >= each.until
        for each in before.in_phase(Phase.LEAVING):
            assert phases(sets).get(each.number, "leaving") == "leaving", "there is no way back from there"
    for _ in range(10):
        now += 1000.0
        numbers = [each.number for each in sets.each]
        others = set(numbers) - {sets.serving.number}
        sets = proceeded(sets, Facts(proven=numbers, idle=others, empty=numbers), now, DRAIN_SECONDS)
    assert list(phases(sets).values()) == ["serving"]
