"""Limits by a clock that tests turn."""

import random

import pytest

from triptych.errors import RateLimited
from triptych.router.edge.limit_books import LimitBooks
from triptych.router.edge.limits import Limiter, Limits, Meter, duration
from triptych.router.edge.pace import LONGEST_SECONDS, Pace


def meter_of(limits: Limits) -> Meter:
    return Meter(LimitBooks(), "tenant", limits)


def told(meter: Meter, now: float) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in meter.headers(now)}


def test_a_minutes_worth_may_come_at_once_and_then_one_at_a_time() -> None:
    meter = meter_of(Limits(requests_per_minute=6))
    for _ in range(6):
        meter.enter(0.0)
    with pytest.raises(RateLimited) as caught:
        meter.enter(4.0)
    assert caught.value.retry_after_seconds == pytest.approx(6.0)
    meter.enter(10.0)
    with pytest.raises(RateLimited):
        meter.enter(10.0)


def test_what_is_refused_costs_nothing() -> None:
    meter = meter_of(Limits(requests_per_minute=1, max_concurrent=1))
    meter.enter(0.0)
    for _ in range(5):
        with pytest.raises(RateLimited, match="in flight at once"):
            meter.enter(60.0)
    meter.leave(0, 60.0)
    meter.enter(60.0)


def test_a_slot_is_free_again_when_a_request_has_left() -> None:
    meter = meter_of(Limits(max_concurrent=2))
    meter.enter(0.0)
    meter.enter(0.0)
    with pytest.raises(RateLimited):
        meter.enter(0.0)
    meter.leave(0, 0.0)
    meter.enter(0.0)
    with pytest.raises(RateLimited):
        meter.enter(0.0)


def test_tokens_are_charged_when_they_are_known_and_may_be_overdrawn() -> None:
    meter = meter_of(Limits(tokens_per_minute=60))
    meter.enter(0.0)
    meter.leave(100, 0.0)
    with pytest.raises(RateLimited, match="60 tokens a minute") as caught:
        meter.enter(0.0)
    assert caught.value.retry_after_seconds == pytest.approx(41.0)
    meter.enter(41.0)


def test_headers_say_what_is_left_and_when_all_is_there_again() -> None:
    meter = meter_of(Limits(requests_per_minute=60))
    meter.enter(0.0)
    meter.enter(0.0)
    assert told(meter, 0.5) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "58",
        "x-ratelimit-reset-requests": "1.5s",
    }
    assert told(meter_of(Limits(max_concurrent=3)), 0.0) == {}


@pytest.mark.parametrize("seed", range(5))
def test_no_clock_and_no_order_of_events_grants_more_than_the_limit(seed: int) -> None:
    rng, now, granted, running = random.Random(seed), 0.0, 0, 0
    meter = meter_of(Limits(requests_per_minute=30, max_concurrent=5))
    for _ in range(3000):
        now += rng.choice((0.0, 0.01, 0.3, -0.2))
        if running and rng.random() < 0.5:
            meter.leave(rng.randrange(100), now)
            running -= 1
            continue
        try:
            meter.enter(now)
            granted += 1
            running += 1
        except RateLimited:
            pass
        assert running <= 5
    latest = 3000 * 0.31 / 4 * 1.2 + 3000 * 0.05
    assert granted <= 30 + 30 * latest / 60


def test_new_limits_keep_what_was_used_and_let_those_in_flight_leave() -> None:
    limiter = Limiter()
    limiter.update({"a": Limits(requests_per_minute=10, max_concurrent=1)})
    meter = limiter.meter("a")
    assert meter is not None
    meter.enter(0.0)
    limiter.update({"a": Limits(requests_per_minute=5)})
    assert limiter.meter("a") is meter
    assert told(meter, 0.0)["x-ratelimit-remaining-requests"] == "4"
    limiter.update({"a": Limits(), "b": Limits()})
    assert limiter.meter("a") is None
    assert limiter.meter("b") is None
    meter.leave(5, 0.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0ms"), (0.0121, "13ms"), (1.5, "1.5s"), (59.0, "59s"), (360.0, "6m0s"), (61.2, "1m2s")]
)
def test_durations_read_like_openais(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_more_are_in_flight_the_sooner_one_ends() -> None:
    pace = Pace()
    assert pace.seconds_until_room(3) == 0.0
    pace.ended(8.0)
    assert pace.seconds_until_room(4) == pytest.approx(2.0)
    for _ in range(100):
        pace.ended(1000.0)
    assert pace.seconds_until_room(1) == LONGEST_SECONDS
