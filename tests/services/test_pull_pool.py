import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait

import pytest

from triptych.journey import Endpoint
from triptych.services.pull_pool import PullPool

SECONDS = 5.0  # for what must not hang
NEAR, FAR = Endpoint("127.0.0.1:7001", 1), Endpoint("127.0.0.1:7002", 2)


@pytest.fixture
def pool() -> Iterator[PullPool]:
    pool = PullPool("pull-test", 4)
    yield pool
    pool.stop()


def _until_three_run(futures: Sequence[Future[None]]) -> None:
    deadline = time.monotonic() + SECONDS
    while sum(future.running() for future in futures) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_work_runs_side_by_side_on_as_many_threads_as_there_are(pool: PullPool) -> None:
    together = threading.Barrier(4)
    futures = [pool.submit(owner, lambda: together.wait(SECONDS) and None) for owner in (NEAR, NEAR, FAR, FAR)]
    assert not wait(futures, SECONDS).not_done
    for future in futures:
        future.result()


def test_an_owner_that_hangs_leaves_a_thread_to_the_others(pool: PullPool) -> None:
    release = threading.Event()
    hanging = [pool.submit(FAR, lambda: release.wait(SECONDS) and None) for _ in range(8)]
    _until_three_run(hanging)
    pool.submit(NEAR, lambda: None).result(SECONDS)
    assert sum(future.running() for future in hanging) == 3
    release.set()
    assert not wait(hanging, SECONDS).not_done


def test_pulls_of_one_owner_begin_in_their_order_and_owners_take_turns(pool: PullPool) -> None:
    order: list[str] = []
    release, gate = threading.Event(), threading.Event()
    blocked = [pool.submit(Endpoint("127.0.0.1:7003", n), lambda: release.wait(SECONDS) and None) for n in range(3)]
    blocked.append(pool.submit(Endpoint("127.0.0.1:7004", 1), lambda: gate.wait(SECONDS) and None))
    futures = [pool.submit(FAR, lambda name=f"far {n}": order.append(name)) for n in range(3)]
    futures += [pool.submit(NEAR, lambda name=f"near {n}": order.append(name)) for n in range(2)]
    gate.set()  # all of them wait: one thread takes them in turns
    assert not wait(futures, SECONDS).not_done
    assert [name for name in order if "far" in name] == ["far 0", "far 1", "far 2"]
    assert order.index("near 0") < order.index("far 2"), "who comes later need not wait for all of another owner's"
    release.set()
    assert not wait(blocked, SECONDS).not_done


def test_an_error_is_the_futures_and_the_thread_goes_on(pool: PullPool) -> None:
    def fail() -> None:
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        pool.submit(NEAR, fail).result(SECONDS)
    for _ in range(5):
        pool.submit(NEAR, lambda: None).result(SECONDS)


def test_what_waits_can_be_cancelled_and_stopping_cancels_it_all(pool: PullPool) -> None:
    release, ran = threading.Event(), list[str]()
    running = [pool.submit(FAR, lambda: release.wait(SECONDS) and None) for _ in range(3)]
    _until_three_run(running)
    dropped = pool.submit(FAR, lambda: ran.append("dropped"))
    assert dropped.cancel()
    left = pool.submit(FAR, lambda: ran.append("left"))
    pool.stop()
    assert left.cancelled()
    assert pool.submit(NEAR, lambda: ran.append("late")).cancelled()
    release.set()
    assert not wait(running, SECONDS).not_done
    assert ran == []


def test_its_threads_are_there_from_the_start(pool: PullPool) -> None:
    assert sum(thread.name.startswith("pull-test-") for thread in threading.enumerate()) == 4
