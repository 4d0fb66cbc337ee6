"""What tenants have used, shared by processes: limits hold exactly, whoever dies."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from triptych.errors import Overloaded, RateLimited
from triptych.router.common_memory import CommonMemory
from triptych.router.commons import Commons
from triptych.router.edge.limit_books import LimitBooks
from triptych.router.edge.limits import Limiter, Limits, Meter

PROCESSES = 3
SECONDS = 20.0
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def commons() -> Iterator[Commons]:
    commons = Commons(PROCESSES, 0)
    yield commons
    commons.close()


def meter_of(commons: Commons, index: int, limits: Limits, tenant: str = "a") -> Meter:
    limiter = Limiter(commons.limits(index))
    limiter.update({tenant: limits})
    meter = limiter.meter(tenant)
    assert meter is not None
    return meter


def test_a_limit_is_one_for_all_processes_and_told_whole(commons: Commons) -> None:
    limits = Limits(requests_per_minute=4, tokens_per_minute=100, max_concurrent=2)
    one, two, three = (meter_of(commons, index, limits) for index in range(PROCESSES))
    one.enter(10.0)
    two.enter(10.0)
    with pytest.raises(RateLimited, match="may have 2 requests in flight"):
        three.enter(10.0)
    one.leave(60, 10.0)
    two.leave(60, 10.0)
    with pytest.raises(RateLimited, match="may use 100 tokens a minute"):
        three.enter(10.0)
    headers = dict(three.headers(10.0))
    assert headers[b"x-ratelimit-limit-requests"] == b"4"
    assert headers[b"x-ratelimit-remaining-requests"] == b"2"
    assert headers[b"x-ratelimit-remaining-tokens"] == b"0"


def test_what_a_dead_process_had_in_flight_is_in_flight_no_more(commons: Commons) -> None:
    limits = Limits(max_concurrent=1, requests_per_minute=10)
    dead, alive = (meter_of(commons, index, limits) for index in (0, 1))
    dead.enter(0.0)
    with pytest.raises(RateLimited):
        alive.enter(0.0)
    commons.forget(0)
    alive.enter(0.0)
    assert dict(alive.headers(0.0))[b"x-ratelimit-remaining-requests"] == b"8"  # it was asked, all the same
    alive.leave(0, 0.0)


def _ask_often(commons: Commons, index: int, limits: Limits, told: Connection) -> None:
    """Says how many were let in, and the most that it has seen in flight beside others."""
    meter, rng, granted = meter_of(commons, index, limits), random.Random(index), 0
    for _ in range(2000):
        try:
            meter.enter(5.0)
        except RateLimited:
            continue
        granted += 1
        if rng.random() < 0.1:
            time.sleep(0)
        meter.leave(1, 5.0)
    told.send(granted)


def test_processes_that_ask_at_once_are_granted_the_limit_to_the_last_request(commons: Commons) -> None:
    limits = Limits(requests_per_minute=1500)
    pipes = [FORK.Pipe() for _ in range(PROCESSES)]
    crowd = [
        FORK.Process(target=_ask_often, args=(commons, index, limits, theirs))
        for index, (_, theirs) in enumerate(pipes)
    ]
    for process in crowd:
        process.start()
    assert sum(ours.recv() for ours, _ in pipes) == 1500
    for process in crowd:
        process.join(SECONDS)
        assert process.exitcode == 0


def _hold(commons: Commons, told: Connection) -> None:
    books = commons.limits(0)
    with books.memory:
        told.send("holding")
        time.sleep(SECONDS)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_ends_or_stands_still_within_the_books_holds_up_nobody(
    commons: Commons, number: signal.Signals
) -> None:
    ours, theirs = FORK.Pipe()
    holder = FORK.Process(target=_hold, args=(commons, theirs))
    holder.start()
    assert ours.recv() == "holding"
    assert holder.pid is not None
    os.kill(holder.pid, number)
    if number is signal.SIGKILL:
        holder.join(SECONDS)
    began = time.monotonic()
    meter = meter_of(commons, 1, Limits(max_concurrent=1))
    meter.enter(0.0)
    meter.leave(0, 0.0)
    assert time.monotonic() - began < 1.0
    holder.kill()
    holder.join(SECONDS)


def test_a_place_whose_tenant_has_used_nothing_becomes_anothers_and_no_use_is_lost() -> None:
    books, limits = LimitBooks(places=2), Limits(requests_per_minute=60)
    first, second, third = (Meter(books, name, limits) for name in "abc")
    first.enter(0.0)
    first.leave(0, 0.0)
    second.enter(0.0)
    with pytest.raises(Overloaded):
        third.enter(0.5)
    third.enter(1.0)  # the first one's bucket is full again, the second one has a request in flight
    second.leave(0, 1.0)
    assert dict(second.headers(0.0))[b"x-ratelimit-remaining-requests"] == b"59"
    third.leave(0, 1.0)
    first.enter(2.0)
    assert dict(first.headers(2.0))[b"x-ratelimit-remaining-requests"] == b"59"


def test_limits_that_change_at_one_process_before_another_keep_what_was_used(commons: Commons) -> None:
    older, newer = (meter_of(commons, index, Limits(requests_per_minute=each)) for index, each in ((0, 10), (1, 20)))
    for _ in range(4):
        older.enter(0.0)
    assert dict(newer.headers(0.0))[b"x-ratelimit-remaining-requests"] == b"16"
    newer.enter(0.0)
    older.enter(0.0)
    assert dict(newer.headers(0.0))[b"x-ratelimit-remaining-requests"] == b"14"


def test_memory_of_one_process_alone_has_no_lock() -> None:
    memory = CommonMemory(10)
    with memory, memory:
        memory.bytes[0:1] = b"x"
    assert memory.bytes[:2] == b"x\0"
