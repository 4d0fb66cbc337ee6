"""The arithmetic of the bench scripts; the servers they start are tested elsewhere."""

import os
import socket
import time

import pytest

from bench.server import cpu_seconds, processes_answering_on
from bench.three_tiers import WORKLOADS, Run, median_stages, pooled
from triptych.loadgen.measures import measure
from triptych.loadgen.options import BenchOptions
from triptych.loadgen.samples import Sample


def run_of(topology: str, workload: str, *first_tokens: float) -> Run:
    options = BenchOptions(**WORKLOADS[workload])
    samples = [Sample(0.0, 0.0, 2.0, (first,), first, options.max_tokens) for first in first_tokens]
    return Run(topology, workload, options, samples, measure(samples, options))


def test_rounds_are_pooled_by_topology_over_the_sum_of_their_times() -> None:
    runs = [
        run_of(topology, workload, first) for first in (0.2, 0.6) for workload in WORKLOADS for topology in ("a", "b")
    ]
    for entry in dict(pooled(runs)).values():
        assert set(entry) == {"what", "a", "b"}
        figures = entry["a"]["measures"]
        assert (figures["completed"], figures["duration_seconds"]) == (2, 4.0)
        assert figures["requests_per_second"] == pytest.approx(0.5)
        assert figures["ttft_seconds"]["p50"] == pytest.approx(0.4)
        assert len(entry["a"]["rounds"]) == len(entry["a"]["samples"]) == 2


def test_stages_are_medians_and_a_missing_one_took_no_time() -> None:
    found = [{"parse": 1.0, "encode": 3.0}, {"parse": 2.0}, {"parse": 9.0, "encode": 1.0}]
    assert median_stages(found) == {"parse": 2.0, "encode": 1.0}


def test_every_workload_is_one_the_load_generator_takes() -> None:
    for chosen in WORKLOADS.values():
        BenchOptions(**chosen)


def test_the_process_behind_a_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert processes_answering_on(listener.getsockname()[1]) == [os.getpid()]
    with pytest.raises(RuntimeError, match="no process listens"):
        processes_answering_on(1)


def test_cpu_time_of_a_process_grows_with_its_work() -> None:
    before, ends_at = cpu_seconds(os.getpid()), time.process_time() + 0.1
    while time.process_time() < ends_at:
        pass
    assert cpu_seconds(os.getpid()) - before == pytest.approx(0.1, abs=0.05)
