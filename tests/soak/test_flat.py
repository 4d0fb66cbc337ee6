"""That the soak can fail: leaks are found, noise and late pools are not taken for one."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tests.soak.flat import trend
from tests.soak.run import Record
from tests.soak.sampling import LIMITS

LEAKS = {
    "rss": "kept.append(bytearray(1 << 20))",
    "descriptors": "kept.append(open('/dev/null'))",
    "mappings": "kept.append(mmap.mmap(-1, 4096, prot=mmap.PROT_READ if len(kept) % 2 else mmap.PROT_WRITE))",
    "threads": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "memfd": "fd = os.memfd_create('x'); os.write(fd, bytes(1 << 20)); kept.append(fd)",
}


@contextmanager
def process_that_does(what: str, every: float) -> Iterator[int]:
    script = f"import mmap, os, threading, time\nkept = []\nwhile True:\n    {what}\n    time.sleep({every})"
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def watched(what: str, seconds: float = 2.5) -> Record:
    record = Record()
    with process_that_does(what, 0.01) as pid:
        time.sleep(0.3)
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            record.add(now, {"it": pid})
            time.sleep(0.03)
    return record


@pytest.mark.parametrize("quantity", LEAKS)
def test_a_process_that_leaks_is_found(quantity: str) -> None:
    complaints = watched(LEAKS[quantity]).complaints()
    assert any(complaint.startswith(f"it: {quantity} grew") for complaint in complaints), complaints


def test_a_process_that_only_works_is_not_accused() -> None:
    record = watched("kept = [bytearray(1 << 20) for _ in range(3)]")
    assert [complaint for complaint in record.complaints() if complaint.startswith("it:")] == []


def test_a_slow_leak_shows_through_noise() -> None:
    rng = np.random.default_rng(1)
    at = np.arange(180.0)
    level = 800 + 0.2 * at + rng.normal(0, 1.0, at.size)
    found = trend(list(at), list(level))
    assert found.growth == pytest.approx(0.2 * 0.65 * 180, rel=0.1)
    assert found.grows(LIMITS["rss"].allowed)


def test_neither_noise_nor_spikes_nor_a_warm_up_count_as_growth() -> None:
    rng = np.random.default_rng(2)
    at = np.arange(180.0)
    level = 800 + rng.normal(0, 3.0, at.size) + np.where(at < 50, at - 50, 0)
    level[::17] += 60
    assert not trend(list(at), list(level)).grows(LIMITS["rss"].allowed)
