"""Which windows a pull gets. That an owner never has more than half of them is in test_nixl.py."""

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.transfer.neighbours import CPU
from tests.transfer.nixl_rig import TCP
from triptych.config import GIB, MIB
from triptych.errors import TransferFailed
from triptych.transfer.landing import Window, Windows, usual_cuda_window
from triptych.transfer.nixl_agent import NixlAgent
from triptych.transfer.nixl_start import start_nixl

pytest.importorskip("nixl_cu13")

WINDOW_BYTES = 8192


@pytest.fixture
def agent() -> Iterator[NixlAgent]:
    made = start_nixl(TCP)
    assert made is not None
    yield made
    made.close()


def windows_of(agent: NixlAgent, count: int) -> Windows:
    return Windows(agent, CPU, replace(TCP, nixl_windows=count, nixl_window_bytes=WINDOW_BYTES))


def soon() -> float:
    return time.monotonic() + 0.02


def test_a_large_pull_gets_as_many_neighbours_as_it_has_use_for_up_to_half(agent: NixlAgent) -> None:
    windows = windows_of(agent, 8)
    for num_bytes, count in ((0, 1), (1, 1), (WINDOW_BYTES, 1), (WINDOW_BYTES + 1, 2), (1 << 30, 4)):
        window = windows.take("mine", soon(), num_bytes)
        assert window.data.numel() == count * WINDOW_BYTES
        assert len(window.places) == count
        windows.give_back(window, "mine")


def test_a_large_pull_makes_do_with_what_is_free_and_waits_for_no_more(agent: NixlAgent) -> None:
    windows = windows_of(agent, 8)
    first, second = (windows.take("mine", soon(), size) for size in (3 * WINDOW_BYTES, 3 * WINDOW_BYTES))
    assert [len(window.places) for window in (first, second)] == [3, 1]  # four are the most of one owner
    with pytest.raises(TransferFailed, match="4 are the owner's"):
        windows.take("mine", soon(), 1)
    assert len(windows.take("theirs", soon(), 1 << 30).places) == 4


@pytest.mark.parametrize(("gib", "mib"), [(24, 128), (80, 160), (141, 282), (192, 288)])
def test_a_larger_gpu_has_larger_windows_within_bounds(gib: int, mib: int) -> None:
    assert usual_cuda_window(gib * GIB) == mib * MIB


def test_all_windows_of_a_lost_read_wait_for_it(agent: NixlAgent) -> None:
    windows, over = windows_of(agent, 4), False
    windows.lose(windows.take("mine", soon(), 1 << 20), "mine", lambda: over)
    assert windows.num_lost() == 2
    with pytest.raises(TransferFailed, match="2 wait for lost reads to end"):
        windows.take("mine", soon())
    assert len(windows.take("theirs", soon(), 1 << 20).places) == 2
    over = True
    assert len(windows.take("mine", soon(), 1 << 20).places) == 2
    assert windows.num_lost() == 0


def test_random_pulls_never_share_a_byte_and_leave_every_window_free(agent: NixlAgent) -> None:
    windows, chance = windows_of(agent, 8), random.Random(4)
    held: list[tuple[Window, str]] = []
    for _ in range(500):
        owner = chance.choice("ab")
        if chance.random() < 0.5 and held:
            windows.give_back(*held.pop(chance.randrange(len(held))))
        elif sum(len(window.places) for window, whose in held if whose == owner) < 4:
            held.append((windows.take(owner, soon(), chance.randint(0, 5 * WINDOW_BYTES)), owner))
        spans = sorted(
            (begin.data_ptr(), begin.data_ptr() + begin.numel() * begin.element_size())
            for window, _ in held
            for begin in (window.data, window.words)
        )
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    for each in held:
        windows.give_back(*each)
    assert [len(windows.take(owner, soon(), 1 << 20).places) for owner in "ab"] == [4, 4]
