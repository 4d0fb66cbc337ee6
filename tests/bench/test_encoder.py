"""The tower's bench: its arithmetic, and a dry run with a tiny tower on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

from bench.encoder import machine_name
from bench.encoder_figures import GOALS, PACKED, Timed, figures, goals
from bench.encoder_preprocess import picture
from bench.encoder_towers import OURS
from bench.encoder_work import QUICK_WORKLOADS, QWEN_7B, TINY, WORKLOADS, Workload, flops
from triptych.journey import Grid
from triptych.multimodal.sniff import sniff

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("grid", [Grid(1, 8, 8), Grid(1, 4, 18), Grid(1, 26, 10)], ids=str)
def test_operations_are_those_that_torch_counts_in_the_stock_tower(grid: Grid) -> None:
    config = Qwen2_5_VLVisionConfig(**TINY)
    config._attn_implementation = "eager"
    tower = Qwen2_5_VisionTransformerPretrainedModel(config)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        tower(torch.randn(grid.patches, 1176), grid_thw=torch.tensor([[grid.t, grid.h, grid.w]]))
    assert counter.get_total_flops() == pytest.approx(flops(TINY, grid), rel=0.002)


def test_sizes_become_the_grids_of_the_published_checkpoint() -> None:
    grids = {(each.width, each.height): each.grid for each in WORKLOADS}
    assert grids == {(448, 448): Grid(1, 32, 32), (1280, 720): Grid(1, 52, 92), (3840, 2160): Grid(1, 154, 274)}
    assert flops(QWEN_7B, Grid(1, 52, 92)) == pytest.approx(6.66e12, rel=0.01)


def timed(workload: Workload, name: str, how: str, *seconds: float) -> Timed:
    return Timed(workload, name, how, lambda: None, [[second] for second in seconds])


def test_figures_are_of_the_median_turn_and_goals_take_the_better_of_ours() -> None:
    workload = Workload(1280, 720, 4)
    ways = [timed(workload, "transformers, sdpa", "one by one", 4.0, 8.0, 100.0)]
    ways += [timed(workload, name, PACKED, second) for name, second in zip(OURS, (4.0, 2.0), strict=True)]
    found = figures(workload, ways, QWEN_7B, dense=100.0)
    ours = found[f"{OURS[1]}, {PACKED}"]
    assert ours["images_per_second"] == 2.0
    assert ours["times_transformers"] == 4.0
    assert ours["tflops"] == pytest.approx(2 * 6.66, rel=0.01)
    judged = {goal["measure"]: goal for goal in goals([workload], {workload.name: found})}
    assert judged["times_transformers"]["reached"] == 4.0
    assert judged["times_transformers"]["holds"]
    assert judged["share_of_dense"]["reached"] == pytest.approx(0.1332, rel=0.01)
    assert not judged["share_of_dense"]["holds"]


def test_every_goal_has_a_workload() -> None:
    sizes = {(each.width, each.height) for each in WORKLOADS}
    assert {(width, height) for width, height, *_ in GOALS} <= sizes


def test_pictures_have_their_size_and_results_a_plain_name() -> None:
    header = sniff(picture(1280, 720))
    assert (header.width, header.height) == (1280, 720)
    assert machine_name("NVIDIA H200") == "h200"


def test_a_dry_run_measures_every_way_and_checks_its_rows(tmp_path: Path) -> None:
    output = tmp_path / "encoder.json"
    words = ["--quick", "--rounds", "2", "--turn", "0.01", "--output", str(output)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.encoder", *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(output.read_text())
    assert set(result["workloads"]) == {each.name for each in QUICK_WORKLOADS}
    for workload, entry in result["workloads"].items():
        measured = {name: each for name, each in entry.items() if isinstance(each, dict)}
        assert len(measured) == 8, (sorted(measured), result["not_measured"])
        assert all(len(each["seconds_of_each_round"]) == 2 for each in measured.values())
        assert not any(each["too_large"] for each in result["errors_against_transformers"][workload].values())
    assert all(each["decode"] > 0 for each in result["preprocess_seconds"].values())
