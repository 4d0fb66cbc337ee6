"""A load that goes on, and one that does not."""

import subprocess
import sys
import time

from triptych.cluster.pacing import BURST, INTERVAL_SECONDS, Pace
from triptych.cluster.progress import STALL_SECONDS, Progress, Watch, work_done


def test_a_load_that_does_something_is_never_silent_for_long_whatever_it_takes() -> None:
    watch = Watch()
    for second in range(0, 3600, 10):
        watch.heard(Progress("loads the language model", work=second * 0.1), float(second))
        assert watch.silent_seconds(float(second)) < STALL_SECONDS


def test_one_that_only_answers_is_silent_until_it_comes_to_another_stage() -> None:
    watch = Watch()
    for second in range(0, 200, 10):  # threads of Ray's do as much where nothing else does
        watch.heard(Progress("loads the language model", work=10 + second * 0.01), float(second))
    assert watch.silent_seconds(200.0) == 200.0
    watch.heard(Progress("prepares to decode", work=10.0), 201.0)
    assert watch.silent_seconds(201.0) == 0.0


def test_one_that_waits_for_its_place_may_wait_for_ever_and_is_watched_from_when_it_has_it() -> None:
    watch = Watch()
    assert watch.silent_seconds(1e6) == 0.0
    watch.began(1e6)
    watch.began(1e6 + 50)
    assert watch.silent_seconds(1e6 + 60) == 60.0
    watch.excuse(1e6 + 60)  # whoever asks it stood still
    assert watch.silent_seconds(1e6 + 70) == 10.0


def test_what_a_process_computes_is_work() -> None:
    before = work_done()
    while work_done() - before < 0.05:
        sum(range(10_000))


def test_what_a_process_computes_that_it_has_started_is_work_while_that_goes_on() -> None:
    before, deadline = work_done(), time.monotonic() + 30.0
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as compiler:
        try:
            while work_done() - before < 0.5:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        finally:
            compiler.kill()


def test_many_starts_at_once_are_spread() -> None:
    pace = Pace(now=100.0)
    assert [pace.take(100.0) for _ in range(BURST + 1)] == [True] * BURST + [False]
    assert pace.take(100.0 + INTERVAL_SECONDS)
    assert not pace.take(100.0 + INTERVAL_SECONDS)
    assert [pace.take(1e6) for _ in range(BURST + 1)] == [True] * BURST + [False]
