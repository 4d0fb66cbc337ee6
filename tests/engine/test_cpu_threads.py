"""Large steps compute on all threads and small ones on half, whatever other threads have set."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from triptych.engine.cpu_threads import MANY_ROWS, CpuThreads

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def in_a_thread(run: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            run()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def test_large_steps_take_all_threads_and_small_ones_half() -> None:
    threads = CpuThreads(CPU)

    def run() -> None:
        for rows, expected in ((MANY_ROWS, 4), (1, 2), (MANY_ROWS - 1, 2), (5000, 4)):
            threads.take(rows)
            assert torch.get_num_threads() == expected, rows

    in_a_thread(run)


def test_a_thread_keeps_its_number_when_another_takes_less() -> None:
    many, few = CpuThreads(CPU), CpuThreads(CPU)

    def run() -> None:
        many.take(MANY_ROWS)
        in_a_thread(lambda: few.take(1))
        torch.zeros(1 << 20).sin()  # computes for the first time
        assert torch.get_num_threads() == 4

    in_a_thread(run)


def test_one_thread_stays_one_thread() -> None:
    torch.set_num_threads(1)
    threads = CpuThreads(CPU)
    in_a_thread(lambda: threads.take(1))
    assert torch.get_num_threads() == 1


def test_a_gpus_steps_leave_the_number_alone() -> None:
    threads = CpuThreads(torch.device("cuda"))

    def run() -> None:
        threads.take(1)
        assert torch.get_num_threads() == 4

    in_a_thread(run)
