"""That the soak can fail: leaks are found, noise and late pools are not taken for one."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from tests.soak.flat import trend
from tests.soak.samples import Samples
from tests.soak.sampling import LIMITS
from tests.soak.settling import MOST_SECONDS, WINDOW_SECONDS, rising

LEAKS = {
    "rss": "kept.append(bytearray(1 << 20))",
    "descriptors": "kept.append(open('/dev/null'))",
    "mappings": "kept.append(mmap.mmap(-1, 4096, prot=mmap.PROT_READ if len(kept) % 2 else mmap.PROT_WRITE))",
    "threads": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "memfd": "fd = os.memfd_create('x'); os.write(fd, bytes(1 << 20)); kept.append(fd)",
}


@contextmanager
def process_that_does(what: str, every: float) -> Iterator[int]:
    """Again and again; it has begun when this returns."""
    loop = f"while True:\n    {what}\n    time.sleep({every})"
    script = f"import mmap, os, threading, time\nkept = []\n{what}\nprint(flush=True)\n{loop}"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def watched(pid: int, seconds: float) -> list[str]:
    """What is said of a process, and of nothing else of this host."""
    samples = Samples()
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        samples.add(now, {"it": pid})
        time.sleep(0.03)
    return [complaint for complaint in samples.grew() if complaint.startswith("it:")]


@pytest.mark.parametrize("quantity", LEAKS)
def test_a_process_that_leaks_is_found(quantity: str) -> None:
    with process_that_does(LEAKS[quantity], 0.01) as pid:
        complaints = watched(pid, 1.7)
    assert any(complaint.startswith(f"it: {quantity} grew") for complaint in complaints), complaints


def test_a_process_that_only_works_is_not_accused() -> None:
    with process_that_does("kept = [bytearray(1 << 20) for _ in range(3)]", 0.01) as pid:
        assert watched(pid, 1.7) == []


def of_rss(level: Sequence[float]) -> Samples:
    """One sample a second of one process."""
    return Samples([float(second) for second in range(len(level))], [{("it", "rss"): each} for each in level])


def first_rest(samples: Samples) -> int:
    """After how many seconds counting begins."""
    shortest = int(WINDOW_SECONDS) + 1
    return next(end for end in range(shortest, len(samples.at)) if not rising(samples.until(end)))


def test_what_fills_up_is_waited_for_and_then_not_accused() -> None:
    """As seen: an arena and a cache of generated code, with a late step of that."""
    level = [800 + 120 * (1 - np.exp(-second / 20)) + (5 if second > 150 else 0) for second in range(300)]
    samples = of_rss(level)
    began = first_rest(samples)
    assert 60 < began < 120
    assert samples.grew(), "without waiting it would be accused"
    assert samples.since(began).grew() == []


def test_what_never_comes_to_rest_is_said_to_leak() -> None:
    samples = of_rss([800 + 0.25 * second for second in range(int(MOST_SECONDS))])
    assert all(rising(samples.until(end)) for end in range(int(WINDOW_SECONDS) + 1, len(samples.at)))
    assert rising(samples)[0].startswith("it: rss grew by 7.5 MiB")


def test_what_leaks_too_slowly_to_keep_others_waiting_is_found_behind() -> None:
    samples = of_rss([800 + 0.075 * second for second in range(240)])
    began = first_rest(samples)
    assert began == WINDOW_SECONDS + 1
    assert samples.since(began).grew() != []


def test_a_slow_leak_shows_through_noise() -> None:
    rng = np.random.default_rng(1)
    at = np.arange(180.0)
    level = 800 + 0.2 * at + rng.normal(0, 1.0, at.size)
    found = trend(list(at), list(level))
    assert found.growth == pytest.approx(0.2 * 180, rel=0.1)
    assert found.grows(LIMITS["rss"].allowed)


def test_neither_noise_nor_spikes_count_as_growth() -> None:
    rng = np.random.default_rng(2)
    at = np.arange(180.0)
    level = 800 + rng.normal(0, 3.0, at.size)
    level[::17] += 60
    assert not trend(list(at), list(level)).grows(LIMITS["rss"].allowed)
