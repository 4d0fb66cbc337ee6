"""What the router without metrics leaves out, and the ratios that are made of rounds."""

import argparse
import subprocess
import sys

import pytest

from bench.metrics_cost import VARIANTS
from bench.routers_in_turns import of, ratio, turned
from triptych.loadgen.workload import WARMUP, make_bodies

_COUNTS = """
import sys
from bench.metrics_alone import ended_request
from bench.metrics_cost import count_nothing
from triptych.config import Settings
from triptych.metrics import RouterMetrics
from triptych.router.observe.router_books import RouterBooks
if sys.argv[1] == "off":
    count_nothing()
metrics = RouterMetrics()
books, request = RouterBooks(Settings(), metrics, "m"), ended_request()
books.began(request)
seconds = books.ended(request)
books.levels.answered("interactive", seconds.ttft, seconds.tpot, seconds.e2e, 3)
books.refresh({("encode", "ready"): 1})
lines = [line for line in metrics.expose().decode().splitlines() if line[0] != "#" and "_created" not in line]
print(sum(float(line.rpartition(" ")[2]) != 0 for line in lines))
"""


def test_the_router_without_metrics_counts_nothing_at_all() -> None:
    def risen(variant: str) -> int:
        command = [sys.executable, "-c", _COUNTS, variant]
        return int(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60).stdout)

    assert risen("off") == 0
    assert risen("on") > 100


def test_a_ratio_is_of_the_sums_and_its_interval_holds_it() -> None:
    found = ratio([1.0, 2.2, 3.0], [1.0, 2.0, 3.0])
    assert found["ratio"] == pytest.approx(6.2 / 6.0, abs=1e-4)
    assert found["low"] <= found["ratio"] <= found["high"]


def test_nobody_is_always_first() -> None:
    assert {turned(VARIANTS, number)[0] for number in range(6)} == set(VARIANTS)


def test_a_warm_up_is_of_ten_requests_whatever_a_round_has() -> None:
    options = argparse.Namespace(requests=3, images=0, max_tokens=1)
    assert len(make_bodies(of("http://127.0.0.1", options), WARMUP)) == 10
