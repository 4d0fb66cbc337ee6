"""What operators wish of sets of workers, and in which order."""

import threading
import time
from collections.abc import Mapping

import pytest

from triptych.cluster.crew import Crew
from triptych.cluster.hiring import Hiring
from triptych.cluster.set_keeper import SetKeeper
from triptych.cluster.sets import Facts, Phase, Sets, first_set, proceeded, reloaded
from triptych.config import ServeSettings, Settings
from triptych.errors import InvalidRequest

SECONDS = 100.0


def keeper(sets: Sets) -> SetKeeper:
    return SetKeeper(sets, SECONDS, room=lambda: None, kept=lambda: None)


def shifted(sets: Sets, model: str) -> Sets:
    """To a set that is not kept for long, and has requests."""
    coming = reloaded(sets, model, time.monotonic() + SECONDS)
    return proceeded(coming, Facts(proven=[coming.last]), time.monotonic(), SECONDS)


def phases(kept: SetKeeper) -> dict[int, str]:
    return {each.number: str(each.phase) for each in kept.sets.each}


def test_a_model_that_still_finishes_serves_again_and_the_one_before_is_kept_as_it_was_asked_for() -> None:
    kept = keeper(shifted(first_set("a"), "b"))
    kept.reload("a", SECONDS, keep_seconds=1000.0)
    assert phases(kept) == {1: "serving", 2: "finishing"}
    (before,) = kept.sets.in_phase(Phase.FINISHING)
    assert before.kept_until > time.monotonic() + 900.0
    assert before.until >= before.kept_until


def test_an_older_one_that_still_finishes_serves_again_where_it_is_named() -> None:
    kept = keeper(shifted(shifted(first_set("a"), "b"), "c"))
    kept.reload("a", SECONDS, keep_seconds=0.0)
    assert phases(kept) == {1: "serving", 2: "finishing", 3: "finishing"}


def test_who_names_one_that_finishes_ends_no_reload_of_another_operator() -> None:
    kept = keeper(shifted(first_set("a"), "b"))
    kept.reload("c", SECONDS, keep_seconds=0.0)
    with pytest.raises(InvalidRequest, match="set 3 with c is still coming"):
        kept.reload("a", SECONDS, keep_seconds=0.0)
    assert phases(kept) == {1: "finishing", 2: "serving", 3: "coming"}


def test_a_set_stays_while_no_server_says_whether_it_has_requests() -> None:
    kept = keeper(shifted(first_set("a"), "b"))  # as whoever keeps the workers finds it when Ray has started it again
    kept.look({"pd": 1}, [], {})
    assert phases(kept) == {1: "finishing", 2: "serving"}


def test_what_is_kept_in_ray_is_the_latest_of_all_and_nobody_else_waits_for_it() -> None:
    settings = Settings(serve=ServeSettings(device="cpu", topology="e+pd", model="a"))
    is_being_written, may_be_written = threading.Event(), threading.Event()
    written: list[tuple[Mapping[str, int], Sets]] = []

    def write(counts: Mapping[str, int], sets: Sets) -> None:
        is_being_written.set()
        assert may_be_written.wait(SECONDS)
        written.append((dict(counts), sets))

    crew = Crew(settings, Hiring(settings, {}, {}, loopback=False), wanted=write)
    wishes = [
        threading.Thread(target=crew.scale, args=({"encode": 2},)),
        threading.Thread(target=crew.reload, args=("b", SECONDS, 0.0)),
    ]
    wishes[0].start()
    assert is_being_written.wait(SECONDS)
    wishes[1].start()
    while not crew.keeper.sets.in_phase(Phase.COMING):  # Ray is away, and still the second wish is heard of
        assert wishes[1].is_alive()
    view = crew.view()
    assert view.counts["encode"] == 2
    assert [str(each.phase) for each in view.sets] == ["serving", "coming"]
    may_be_written.set()
    for each in wishes:
        each.join(SECONDS)
    counts, sets = written[-1]
    assert (counts["encode"], sets) == (2, crew.keeper.sets)
