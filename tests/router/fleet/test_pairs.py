"""What workers tell of their paths becomes metrics, JSON and lines on a terminal."""

from triptych.client import path_lines
from triptych.metrics import (
    COPY_BYTES_BUCKETS,
    COPY_SECONDS_BUCKETS,
    PREFIX,
    WORKER_HISTOGRAMS,
    BucketCounts,
    RouterMetrics,
    WorkerGauges,
)
from triptych.pb import worker_pb2
from triptych.router.fleet.pairs import describe_paths, pair_counts
from triptych.router.fleet.reported import histograms

ROLES = {"owner_role": "encode", "consumer_role": "prefill"}
LABELS = 'consumer_role="prefill",owner_role="encode",transport="nixl",worker_id="w",worker_type="prefill"'


def status_of(*transports: str, **copies: object) -> worker_pb2.StatusReply:
    paths = [
        worker_pb2.TransferPath(owner=f"10.0.0.{index}:1", transport=transport, refused=["shm: another host"], **ROLES)
        for index, transport in enumerate(transports)
    ]
    told = [worker_pb2.TransferCopies(transport="nixl", **ROLES, **copies)] if copies else []  # type: ignore[arg-type]
    return worker_pb2.StatusReply(paths=paths, copies=told)


def exposed(status: worker_pb2.StatusReply) -> dict[str, float]:
    metrics, gauges = RouterMetrics(), WorkerGauges()
    metrics.add_workers(gauges)
    gauges.pairs_by_worker["w", "prefill"] = pair_counts(status)
    lines = [line for line in metrics.expose().decode().splitlines() if line.startswith("triptych:transfer_")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_neighbours_are_counted_by_the_transport_that_reaches_them() -> None:
    told = exposed(status_of("nixl", "nixl", "none"))
    assert told[f"triptych:transfer_pair_info{{{LABELS}}}"] == 2
    assert told[f"triptych:transfer_pair_info{{{LABELS.replace('nixl', 'none')}}}"] == 1
    assert len(told) == 2


def test_copies_become_cumulative_histograms_of_seconds_and_bytes() -> None:
    by_seconds = [0] * (len(COPY_SECONDS_BUCKETS) + 1)
    by_bytes = [0] * (len(COPY_BYTES_BUCKETS) + 1)
    by_seconds[3], by_seconds[-1], by_bytes[0] = 4, 1, 5
    told = exposed(status_of("nixl", by_seconds=by_seconds, by_bytes=by_bytes, seconds=31.5, num_bytes=5000))
    assert told[f"triptych:transfer_seconds_sum{{{LABELS}}}"] == 31.5
    assert told[f"triptych:transfer_seconds_count{{{LABELS}}}"] == 5
    assert told[f"triptych:transfer_bytes_sum{{{LABELS}}}"] == 5000
    buckets = {name: value for name, value in told.items() if name.startswith("triptych:transfer_seconds_bucket")}
    assert sorted(buckets.values()) == [0] * 3 + [4] * (len(COPY_SECONDS_BUCKETS) - 3) + [5]


def test_histograms_of_another_version_are_left_out_and_its_paths_kept() -> None:
    told = exposed(status_of("nixl", by_seconds=[1, 2], by_bytes=[3], seconds=1.0, num_bytes=5))
    assert list(told) == [f"triptych:transfer_pair_info{{{LABELS}}}"]


def test_a_workers_histograms_are_taken_by_name_and_those_of_another_version_left_out() -> None:
    sizes = {metric.name.removeprefix(PREFIX): len(metric.buckets) + 1 for metric in WORKER_HISTOGRAMS}
    told = [worker_pb2.Histogram(name=name, counts=range(size), total=2.5) for name, size in sizes.items()]
    strange = [worker_pb2.Histogram(name="later", counts=[1]), worker_pb2.Histogram(name=min(sizes), counts=[1, 2])]
    found = histograms(worker_pb2.StatusReply(histograms=told))
    assert found == {name: BucketCounts(tuple(range(size)), 2.5) for name, size in sizes.items()}
    assert histograms(worker_pb2.StatusReply(histograms=strange)) == {}


def test_a_terminal_shows_the_path_and_why_no_nearer_one() -> None:
    worker = {"worker_id": "prefill-0", "address": "10.0.0.9:1", "paths": describe_paths(status_of("nixl", "none"))}
    encoder = {"worker_id": "encode-0", "address": "10.0.0.0:1", "paths": []}
    assert path_lines([encoder, worker]) == [
        "",
        "prefill-0 reads encode-0 by nixl",
        "    not by shm: another host",
        "prefill-0 cannot read 10.0.0.1:1",
        "    not by shm: another host",
    ]
    assert path_lines([encoder]) == []
