"""The bench of attention runs, and its arithmetic is that of the steps it times."""

import json
import subprocess
import sys
from pathlib import Path

import torch

from bench.attention_work import DECODES, PROMPTS, Point, shape_of
from triptych.models.attention.base import AttentionShape

ROOT = Path(__file__).parents[2]
SHAPE = AttentionShape(28, 4, 128, 16, 28, torch.bfloat16, torch.bfloat16, 128**-0.5)


def test_a_dry_run_has_figures_of_every_step(tmp_path: Path) -> None:
    output = tmp_path / "attention.json"
    words = ["--quick", "--rounds", "1", "--output", str(output)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.attention", *words], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert not result["not_timed"]
    assert {name: set(ways) for name, ways in result["decode"].items()} == {"3 × 70": {"sdpa"}, "1 × 33": {"sdpa"}}
    assert {name: set(ways) for name, ways in result["prompts"].items()} == {
        "2 × 40": {"sdpa"},
        "2 × 17 of 50": {"sdpa"},
    }
    assert all(figure["tflops"] > 0 for ways in result["prompts"].values() for figure in ways.values())


def test_a_decode_step_reads_every_key_and_value_once() -> None:
    assert Point(64, 1, 2048).kv_bytes(SHAPE) == 64 * 2048 * 4 * 128 * 2 * 2


def test_a_prompt_counts_the_pairs_that_see_each_other() -> None:
    fresh, later = Point(1, 3, 3), Point(1, 2, 5)
    assert fresh.flops(SHAPE) == 4 * 28 * 128 * (1 + 2 + 3)
    assert later.flops(SHAPE) == 4 * 28 * 128 * (4 + 5)


def test_steps_have_names_of_their_own() -> None:
    names = [point.name for point in (*DECODES, *PROMPTS)]
    assert len(set(names)) == len(names)
    assert shape_of(torch.device("cpu"), 32).block_size == 32
