"""Boards and alerts before a real Prometheus that watches a live cluster under load, whose decode workers die."""

import math
import re
from collections.abc import Iterator

import pytest

from tests.dashboards.boards import Target, boards, filled, targets
from tests.dashboards.live import Live, live_cluster
from tests.dashboards.prometheus import Prometheus, Series

LOAD_SECONDS = 16.0
WINDOW_SECONDS = 6.0  # that rates are taken over

# Metrics that are not there, and why.
ABSENT = {"triptych:device_bytes": "told by workers on a GPU alone"}

# Counts that need not rise here, and why; those who make them have tests of their own.
QUIET = {
    "usage_log_dropped": "a slow disk",
    "encoder_cache_joins": "two requests with one new image at the very same moment",
    "encoder_duplicate_encodes": "there is one encoder, and none is the goal",
    "encoder_cache_(evictions|oversize|replacements)": "more rows than the arena holds, at least one large batch",
    "encoder_host_(demotions|promotions|failures)": "the same",
    "encoder_graph_(replays|misses)": "CUDA graphs: no GPU here",
    "encoder_decode_lost": "a file that crashes a decoder",
    "preempt|swapped": "more sequences than KV blocks",
    "expired_claims|late_releases": "somebody who dies between two messages, and a lease's time",
    "transfer_failures": "a worker that dies while it is read from; what dies here reads",
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    if not Prometheus.is_here():
        pytest.skip("Prometheus is not here; Debian has it: apt-get install --no-install-recommends prometheus")
    with live_cluster(tmp_path_factory.mktemp("live"), LOAD_SECONDS) as live:
        yield live


def found(live: Live, target: Target) -> list[Series]:
    """As the panel asks: over all that was seen, or for this moment."""
    span = live.ended - live.began
    expr = filled(target.expr, span if "$__range" in target.expr else WINDOW_SECONDS)
    if target.kind == "table":
        return live.prometheus.now(expr)
    return live.prometheus.between(expr, live.began, live.ended)


def numbers(series: list[Series]) -> list[float]:
    return [value for each in series for _, value in each.points if math.isfinite(value)]


def test_every_query_of_every_panel_finds_data(live: Live) -> None:
    empty = {target: not numbers(found(live, target)) for target in targets()}
    excused = [target for target in empty if any(name in target.expr for name in ABSENT)]
    assert [str(target) for target, is_empty in empty.items() if is_empty and target not in excused] == []
    assert all(empty[target] for target in excused), "it is there: away with it from ABSENT"


def test_what_has_happened_shows(live: Live) -> None:
    """Counts have risen, also those of faults."""
    counts = [target for target in targets() if re.search(r"\b(rate|increase)\(", target.expr)]
    risen = {target: any(numbers(found(live, target))) for target in counts}
    excused = [target for target in counts if any(re.search(name, target.expr) for name in QUIET)]
    assert [str(target) for target, has_risen in risen.items() if not has_risen and target not in excused] == []


def test_variables_offer_what_there_is(live: Live) -> None:
    offered = {}
    for board in boards().values():
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
                offered[variable["name"]] = live.prometheus.values_of(label, filled(selector, WINDOW_SECONDS))
    assert offered == {
        "cluster": ["triptych"],
        "slo": ["interactive", "strict"],
        "worker_type": ["decode", "encode", "prefill"],
        "worker": ["decode-0", "decode-1", "encode-0", "prefill-0"],
    }


def test_a_choice_of_one_worker_shows_that_worker(live: Live) -> None:
    (memory,) = (each for each in targets() if "triptych:rss_bytes" in each.expr)
    for worker_id in live.cluster.workers:
        (one,) = live.prometheus.now(filled(memory.expr, WINDOW_SECONDS, worker=worker_id))
        assert one.labels == {"worker_type": worker_id.partition("-")[0]}
        assert one.points[0][1] > 1e6


def test_all_targets_are_found_through_the_router_and_answer(live: Live) -> None:
    assert live.prometheus.targets_down() == []
    instances = {each.labels["instance"] for each in live.prometheus.now('up{kind="worker"}')}
    assert instances == live.cluster.workers.keys()


def test_the_class_that_is_not_kept_is_alerted_of_and_no_other(live: Live) -> None:
    firing = {
        (each.labels["alertname"], each.labels.get("slo"))
        for each in live.prometheus.now('ALERTS{alertstate="firing",severity="page"}')
    }
    assert firing == {("TriptychSLOFastBurn", "strict"), ("TriptychSLOBurn", "strict")}
