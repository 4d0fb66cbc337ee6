"""The list of metrics, and what is made of it: labels that fold, kinds, shares, the page."""

import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tools.metrics_page import PAGE, page
from triptych.config import RouterSettings
from triptych.metrics import (
    DERIVED_METRICS,
    PAIR_METRICS,
    ROUTER_METRICS,
    SLO_METRICS,
    SLO_RATIO_METRICS,
    WORKER_GAUGES,
    WORKER_HISTOGRAMS,
    BucketCounter,
    RouterMetrics,
)
from triptych.metrics.metric import BATCH_ITEMS_BUCKETS, STAGE_BUCKETS

EVERY = (
    *(*ROUTER_METRICS, *SLO_METRICS, *SLO_RATIO_METRICS),
    *(*WORKER_HISTOGRAMS, *DERIVED_METRICS, *PAIR_METRICS),
)


def samples(text: bytes) -> dict[str, float]:
    """By name and labels, as `name{a=b}`."""
    return {
        f"{sample.name}{{{','.join(f'{name}={value}' for name, value in sorted(sample.labels.items()))}}}": sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_names_are_said_once_and_say_their_kind_and_their_owner() -> None:
    names = [each.name for each in EVERY] + [each.exposed_name for each in WORKER_GAUGES]
    assert len(set(names)) == len(names)
    kinds = {each.name: each.kind for each in EVERY} | {each.exposed_name: each.kind for each in WORKER_GAUGES}
    assert [name for name, kind in kinds.items() if name.endswith("_total") != (kind == "counter")] == []
    assert [name for name in names if not name.startswith("triptych:")] == []
    forbidden = {"id", "request_id", "url", "digest", "tenant", "key", "trace_id"}
    assert [each.name for each in EVERY if forbidden & set(each.labels)] == []


def test_seconds_of_stages_are_told_apart_up_to_the_longest_requests() -> None:
    (whole,) = (each for each in ROUTER_METRICS if each.name == "triptych:e2e_request_latency_seconds")
    stages = [each for each in ROUTER_METRICS if each.buckets == STAGE_BUCKETS]
    assert "triptych:stage_duration_seconds" in [each.name for each in stages]
    assert STAGE_BUCKETS[-1] == whole.buckets[-1]
    assert max(later / sooner for sooner, later in pairwise(STAGE_BUCKETS)) <= 4
    deadlines = RouterSettings()
    for seconds in (deadlines.stage_timeout_seconds, deadlines.request_timeout_seconds):
        assert seconds in STAGE_BUCKETS, "whoever ran into a deadline is told from whoever came close"
    assert max(len(each.buckets) for each in ROUTER_METRICS) <= 22  # vLLM's for the first token: series for each stage


def test_the_committed_page_is_what_is_generated() -> None:
    assert PAGE.read_text() == page(), "run: python -m tools.metrics_page"


def test_what_a_label_does_not_know_is_other_and_fills_no_table() -> None:
    metrics = RouterMetrics()
    before = len(metrics._children)
    for number in range(1000):
        metrics.count("triptych:request_errors_total", error=f"Made{number}")
        metrics.observe("triptych:stage_duration_seconds", 0.1, stage=f"stage {number}")
    found = samples(metrics.expose())
    assert found["triptych:request_errors_total{error=other}"] == 1000
    assert found["triptych:stage_duration_seconds_count{stage=other}"] == 1000
    assert (len(metrics._children), len(metrics._tallies)) == (before, 0)


def test_what_is_booked_at_once_is_what_was_observed_one_by_one() -> None:
    chance = random.Random(3)
    values = [chance.expovariate(10) for _ in range(2500)] + [0.0, 0.5, 1e9]  # on a bound, and beyond all
    metrics, plain = RouterMetrics(), CollectorRegistry()
    (listed,) = (each for each in ROUTER_METRICS if each.name == "triptych:time_to_first_token_seconds")
    one_by_one = Histogram(listed.name, listed.help, buckets=listed.buckets, registry=plain)
    for value in values:
        metrics.observe(listed.name, value)
        one_by_one.observe(value)
    wanted = samples(generate_latest(plain))
    found = samples(metrics.expose())
    wanted_sum = wanted.pop("triptych:time_to_first_token_seconds_sum{}")
    assert found["triptych:time_to_first_token_seconds_sum{}"] == pytest.approx(wanted_sum)
    assert {name: found[name] for name in wanted if "_created" not in name} == {
        name: value for name, value in wanted.items() if "_created" not in name
    }


def test_what_only_rises_at_a_worker_is_a_counter_and_shares_are_made_of_it() -> None:
    metrics = RouterMetrics()
    metrics.worker_gauges.by_worker["w", "decode"] = {
        "kv_blocks": 10.0,
        "kv_free_blocks": 4.0,
        "prefix_hit_tokens_total": 7.0,
        "preemptions_swapped_total": 2.0,
        "preemptions_stalled_total": 1.0,
    }
    text = metrics.expose()
    assert b"# TYPE triptych:prefix_cache_hits_total counter" in text
    found = samples(text)
    assert found["triptych:prefix_cache_hits_total{worker_id=w,worker_type=decode}"] == 7
    assert found["triptych:kv_cache_usage_perc{worker_id=w,worker_type=decode}"] == 0.6
    assert found["triptych:num_preemptions_total{worker_id=w,worker_type=decode}"] == 3
    assert "w" not in metrics.expose_routers().decode().replace("worker", "").split('"')
    assert samples(metrics.expose_worker("other")) == {}


def test_what_workers_count_by_size_is_exposed_as_prometheus_has_it() -> None:
    metrics = RouterMetrics()
    counter = BucketCounter(BATCH_ITEMS_BUCKETS)
    for items in (1, 2, 3, 4, 65):
        counter.add(items)
    told = {"encoder_mm_items_per_batch": counter.counts}
    metrics.worker_gauges.tell(("w", "encode"), {}, histograms=told)
    metrics.worker_gauges.tell(("v", "encode"), {})
    found = samples(metrics.expose())
    name, labels = "triptych:encoder_mm_items_per_batch", "worker_id=w,worker_type=encode"
    by_bucket = {le: found[f"{name}_bucket{{le={le},{labels}}}"] for le in ("1.0", "2.0", "4.0", "64.0", "+Inf")}
    assert by_bucket == {"1.0": 1, "2.0": 2, "4.0": 4, "64.0": 4, "+Inf": 5}
    assert (found[f"{name}_count{{{labels}}}"], found[f"{name}_sum{{{labels}}}"]) == (5, 75)
    assert not any("worker_id=v" in each for each in found)
    metrics.worker_gauges.forget(("w", "encode"))
    assert not any(each.startswith(name) for each in samples(metrics.expose()))


_ONE_ROUTER = """
import sys, time
from triptych.metrics import RouterMetrics
metrics = RouterMetrics()
metrics.set("triptych:slo_target_ratio", 0.9, slo="a")
metrics.set("triptych:slo_window_requests", float(sys.argv[1]), slo="a", window="budget")
metrics.set("triptych:slo_window_attained_requests", float(sys.argv[2]), slo="a", window="budget")
print("there", flush=True)
sys.stdin.read()
"""


def test_shares_are_of_the_requests_of_all_routers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy router that misses some and an idle one that misses all are no mean of two."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    routers = [
        subprocess.Popen(
            [sys.executable, "-c", _ONE_ROUTER, *counts],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for counts in (("98", "93"), ("2", "0"))
    ]
    try:
        for router in routers:
            assert router.stdout is not None
            assert router.stdout.readline() == b"there\n"
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
        found = samples(RouterMetrics().expose())
    finally:
        for router in routers:
            router.communicate(timeout=20)
    assert found["triptych:slo_attainment_ratio{slo=a,window=budget}"] == pytest.approx(0.93)
    assert found["triptych:slo_burn_rate{slo=a,window=budget}"] == pytest.approx(0.7)
    assert found["triptych:slo_error_budget_remaining_ratio{slo=a}"] == pytest.approx(0.3)


def test_few_and_known_series_of_a_counter_begin_at_0() -> None:
    """Of one that is first seen at 1 Prometheus sees no increase."""
    found = samples(RouterMetrics().expose())
    assert [found[f"triptych:retries_total{{stage={stage}}}"] for stage in ("encode", "prefill", "decode")] == [0] * 3
    assert not any(name.startswith("triptych:stage_errors_total{") for name in found), "too many to be there unseen"
