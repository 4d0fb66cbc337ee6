"""The goals' table: what is sent is what the goals say, verdicts; what is made of traces, metrics and nvidia-smi."""

import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.h200_table import missed, verdicts
from bench.h200_trace import Work, read_trace, summary
from bench.h200_watch import changes, cpu_seconds_by_process, differences, gpu_summary, samples
from bench.h200_work import PARTS, START, chosen, dry, means

W2 = "--images 4 --size 1280x720 --text-tokens 64 --max-tokens 64"


def command(name: str, topology: str, seed: int) -> str:
    (part,) = chosen(name)
    return " ".join(part.command(topology, seed))


def test_each_part_is_sent_as_the_goals_have_it() -> None:
    closed = f"{W2} --requests 96 --concurrency 16"
    w1 = "--size 1280x720 --max-tokens 1 --requests 10 --concurrency 1 --warmup 1"
    w3 = "--images 1 --size 640x480 --max-tokens 256 --requests 192 --concurrency 64"
    slo = f"{W2} --requests 60 --slo-ttft 1.5 --slo-tpot 0.05"
    assert command("w1-4", "epd", 104) == f"run --images 4 {w1} --seed 104 --raw"
    assert command("w2", "epd", 200) == f"run {closed} --seed 200 --raw"
    assert command("w3", "epd", 300) == f"run {w3} --seed 300 --raw"
    assert command("w4", "epd", 400) == f"run {closed} --same-image --seed 400 --raw"
    assert command("w5", "epd", 7000) == f"run {slo} --rate 4 --seed 7000 --raw"
    assert command("w5", "e+p+d", 9000) == f"run {slo} --rate 3.4 --seed 9000 --raw"
    seeds = {part.name: part.seeds for part in PARTS}
    assert seeds == {
        "w1-1": (101,),
        "w1-4": (104,),
        "w1-8": (108,),
        "w2": (200, 210),
        "w3": (300,),
        "w4": (400,),
        "w5": (7000, 8000, 9000),
    }


def test_parts_are_chosen_by_name_or_by_workload() -> None:
    assert [part.name for part in chosen("w1")] == ["w1-1", "w1-4", "w1-8"]
    assert [part.name for part in chosen("w3,w1-4")] == ["w1-4", "w3"]
    assert chosen("") == list(PARTS)
    with pytest.raises(ValueError, match="w9"):
        chosen("w9")


def test_a_dry_run_has_every_part_with_less_to_do() -> None:
    for part in PARTS:
        assert len(dry(part).seeds) == 1
        assert dry(part).arguments[: len(part.arguments)] == part.arguments


def figures(**more: Any) -> dict[str, Any]:
    found = {
        "req_per_s": 6.0,
        "output_tok_per_s": 7000.0,
        "errors": 0.0,
        "short_replies": 0.0,
        "ttft_s": {"p50": 0.05},
        "tpot_ms": {"p50": 5.0, "p90": 30.0},
        "slo": {"attainment": 0.95},
        "router_cpu_per_request": 0.02,
    }
    return found | more


def result(topology: str = "epd", **parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"topology": topology, "parts": {name.replace("_", "-"): {"means": each} for name, each in parts.items()}}


def test_figures_within_their_goals_hold_and_others_are_missed() -> None:
    fine = result(w1_1=figures(), w2=figures(), w3=figures(), w5=figures())
    assert missed(fine) == set()
    assert missed(result(w1_1=figures(ttft_s={"p50": 0.071}))) == {"w1-1"}
    assert missed(result(w2=figures(tpot_ms={"p90": 41.0}))) == {"w2"}
    assert missed(result(w2=figures(router_cpu_per_request=0.026))) == {"w2"}
    assert missed(result(w3=figures(output_tok_per_s=6499.0))) == {"w3"}


def test_three_processes_have_goals_of_their_own() -> None:
    slower = figures(tpot_ms={"p50": 9.0, "p90": 15.0}, output_tok_per_s=6100.0, ttft_s={"p50": 0.075})
    assert missed(result("e+p+d", w1_1=slower, w2=slower, w3=slower)) == set()
    assert missed(result("epd", w1_1=slower, w3=slower)) == {"w1-1", "w3"}


def test_failed_or_short_answers_spoil_a_figure() -> None:
    assert missed(result(w4=figures(req_per_s=50.0))) == set()
    assert missed(result(w4=figures(req_per_s=50.0, errors=1.0))) == {"w4"}
    assert missed(result(w4=figures(req_per_s=50.0, short_replies=1.0))) == {"w4"}


def test_a_part_that_has_not_run_is_neither_held_nor_missed() -> None:
    assert missed({"topology": "epd", "parts": {}}) == set()
    assert all(verdict.value is None for verdict in verdicts({"topology": "epd", "parts": {}}))


def test_the_start_is_judged_by_its_seconds() -> None:
    assert missed({"topology": "epd", "parts": {START: {"seconds": 46.0}}}) == {START}
    assert missed({"topology": "e+p+d", "parts": {START: {"seconds": 46.0}}}) == set()


def test_means_are_over_runs_and_keep_the_nesting() -> None:
    runs = [
        {"rate": 4, "slo": {"attainment": 0.8}, "label": "a", "flag": True, "none": None},
        {"rate": 5, "slo": {"attainment": 1.0}},
    ]
    assert means(runs) == {"rate": 4.5, "slo": {"attainment": 0.9}}


def event(name: str, begin: float, length: float, stream: int = 7, kind: str = "kernel") -> dict[str, Any]:
    return {"cat": kind, "name": name, "ts": begin, "dur": length, "args": {"stream": stream}}


def test_a_trace_tells_how_long_the_device_was_busy_and_what_it_waited_between(tmp_path: Path) -> None:
    events = [
        event("b", 50, 50, stream=9),
        event("a", 0, 100),
        event("a", 300, 100),
        event("python", 0, 400, kind="cpu_op"),
    ]
    path = tmp_path / "epd-0-1.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    found = summary(read_trace(path))
    assert found["traced_seconds"] == pytest.approx(400e-6)
    assert found["busy_share"] == 0.5
    assert found["kernels"] == [["a", 2, 0.2], ["b", 1, 0.05]]
    assert found["share_by_stream"] == {"7": 0.5, "9": 0.125}
    assert found["longest_gaps_ms"] == [[0.2, "a", "a"]]


def test_work_that_overlaps_is_busy_once() -> None:
    works = [Work("a", 0, 100, 1), Work("b", 20, 60, 2), Work("c", 90, 120, 2), Work("d", 120, 200, 1)]
    assert summary(works)["busy_share"] == 1.0
    assert summary([]) == {"traced_seconds": 0.0}


def test_lines_of_nvidia_smi_that_are_not_whole_are_left_out() -> None:
    found = gpu_summary(["80, 40, 90000, 500.5, 1980", "100, 60, 91000, 600.5, 1980", "90, 5", "[N/A], 1, 2, 3, 4"])
    assert found["samples"] == 2
    assert found["utilization.gpu"] == {"mean": 90.0, "max": 100.0}
    assert gpu_summary([]) == {}


def test_metrics_are_told_by_what_changed_and_histograms_by_their_mean() -> None:
    stem = "triptych:stage_seconds"
    text = f'{stem}_bucket{{le="1.0"}} 4.0\n{stem}_sum{{stage="a"}} %s\n{stem}_count{{stage="a"}} %s\n'
    before, after = samples(text % (1.0, 2.0)), samples(text % (4.0, 4.0) + "triptych:images_total 3.0\n# HELP x\n")
    assert changes(before, after) == {
        'stage_seconds_mean{stage="a"}': 1.5,
        'stage_seconds_count{stage="a"}': 2.0,
        "images_total": 3.0,
    }


def test_cpu_seconds_are_those_of_a_process_and_its_children() -> None:
    sum(range(3_000_000))
    found = cpu_seconds_by_process(os.getpid())
    assert sum(found.values()) > 0
    assert differences({"a": 1.0}, {"a": 1.5, "b": 0.25, "c": 0.001}) == {"a": 0.5, "b": 0.25}
