"""Retries: once per stage and request, and rarely over all."""

from triptych.errors import Draining, InvalidMedia, LayoutMismatch, NoWorker, Overloaded, WorkerLost
from triptych.journey import Role
from triptych.metrics import RouterMetrics
from triptych.router.pipeline.retries import MOST_CREDIT, MOST_MOVES, Retries, RetryBudget


def test_a_stage_is_tried_again_once() -> None:
    retries = Retries(RetryBudget(RouterMetrics()))
    assert retries.allow(Role.ENCODE, WorkerLost("x"))
    assert not retries.allow(Role.ENCODE, WorkerLost("x"))
    assert retries.allow(Role.DECODE, WorkerLost("x"))


def test_what_another_try_cannot_mend_is_not_tried_again() -> None:
    retries = Retries(RetryBudget(RouterMetrics()))
    for error in (InvalidMedia("x"), LayoutMismatch("x"), NoWorker("x"), Overloaded("x")):
        assert not retries.allow(Role.PREFILL, error)
    assert retries.allow(Role.PREFILL, WorkerLost("x"))


def test_in_the_long_run_one_request_in_ten_is_tried_again() -> None:
    budget = RetryBudget(RouterMetrics())
    allowed = sum(Retries(budget).allow(Role.PREFILL, WorkerLost("x")) for _ in range(2000))
    assert MOST_CREDIT + 150 < allowed <= MOST_CREDIT + 200


def test_retries_are_counted_by_stage() -> None:
    metrics = RouterMetrics()
    Retries(RetryBudget(metrics)).allow(Role.DECODE, WorkerLost("x"))
    assert b'triptych:retries_total{stage="decode"} 1.0' in metrics.expose()


def test_going_on_from_a_worker_that_drains_spends_nothing_and_does_not_go_on_for_ever() -> None:
    retries = Retries(RetryBudget(RouterMetrics()))
    assert [retries.allow(Role.DECODE, Draining("x")) for _ in range(MOST_MOVES + 1)] == [True] * MOST_MOVES + [False]
    assert retries.allow(Role.DECODE, WorkerLost("x"))
