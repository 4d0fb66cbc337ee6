"""Floors and scaling tables: the arithmetic, the page they go to, and a dry run of the measured stages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2ForCausalLM
from transformers.models.qwen2 import Qwen2Config

from bench.pages import amount, fill, markdown, seconds
from bench.roofline import table
from bench.roofline_work import H200, Decoder, Shapes, Stage, stages
from bench.scaling_tables import TABLES, lines
from tools.make_geometry import GEOMETRIES

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT, VISION = GEOMETRIES["qwen2.5-vl-7b"]
SMALL = Decoder(layers=2, hidden=64, intermediate=96, heads=4, kv_heads=2, head_size=16, vocab=256)


@pytest.mark.parametrize("tokens", [8, 64])
def test_operations_of_a_prompt_are_those_that_torch_counts(tokens: int) -> None:
    config = Qwen2Config(
        vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = Qwen2ForCausalLM(config)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(torch.randint(0, 256, (1, tokens)), logits_to_keep=1)
    # Without a kernel that knows of causality, whole squares are computed: nearly twice our pairs.
    squares = 4.0 * tokens**2 * SMALL.heads * SMALL.head_size * SMALL.layers
    expected = SMALL.prompt(tokens)[0] - SMALL.attention_flops(0, tokens) + squares
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.01)


def test_parts_of_a_prompt_attend_over_as_many_pairs_as_the_whole() -> None:
    whole = SMALL.attention_flops(0, 100)
    assert SMALL.attention_flops(0, 37) + SMALL.attention_flops(37, 100) == pytest.approx(whole)


def test_a_decode_step_of_the_7b_reads_14_gigabytes_of_weights() -> None:
    decoder = Decoder.of(TEXT)
    assert decoder.kv_bytes == 57_344
    operations, moved = decoder.decode(1, 0)
    assert moved == pytest.approx(14.14e9, rel=0.002)
    assert operations == pytest.approx(moved, rel=0.01)  # two operations for each number of two bytes
    assert decoder.decode(64, 2048)[1] - decoder.decode(64, 1024)[1] == 64 * 1024 * 57_344


def test_a_request_of_four_images_is_95_teraflop() -> None:
    found = {
        stage.key: stage.flops for stage in stages(Decoder.of(TEXT), VISION | {"patch_size": 14} | PATCH, Shapes())
    }
    assert 4 * found["tower-1"] + found["prompt-w2"] == pytest.approx(95e12, rel=0.01)


PATCH = {"temporal_patch_size": 2, "spatial_merge_size": 2}


def test_a_floor_is_the_larger_of_both_times() -> None:
    assert Stage("a", "", 788e12, 4.3e12 / 2).floor(H200) == 1.0
    assert Stage("a", "", 788e12, 4.3e12 / 2).bound(H200) == "products"
    assert Stage("a", "", 0, 8.6e12).floor(H200) == 2.0
    assert Stage("a", "", 0, 8.6e12).bound(H200) == "memory"
    assert Stage("a", "", 0, 0, 0.025).bound(H200) == "the host"


def test_a_ratio_is_measured_over_floor_and_the_rest_is_left() -> None:
    row = table([Stage("a", "work", 0, 4.3e9)], {"a": 0.003})[-1]
    assert row == "| work | – | 4.3 GB | 1 ms | memory | 3 ms | 3.00 | 2 ms |"
    assert "| – | – | – |" in table([Stage("a", "work", 0, 4.3e9)], {})[-1]


def entry(prompt_tokens: float, value: float, **more: int) -> dict[str, object]:
    times = {"ttft_seconds": {"p50": value}, "tpot_seconds": {"p50": value}, "output_tokens_per_second": 10.0}
    return {"prompt_tokens": prompt_tokens, "errors": 0, "short_answers": 0, **times, **more}


def test_growth_is_told_against_the_mean_cost_of_what_was_before() -> None:
    rows = lines("batch", {"1": entry(280, 0.004), "3": entry(280, 0.012), "4": entry(280, 0.014, errors=1)})
    assert [row.split(" | ")[3:5] for row in rows[2:]] == [["–", "–"], ["4 ms", "1.00"], ["2 ms", "0.50"]]
    assert rows[4].startswith("| 4 (not all answered) |")
    assert lines("batch", {}) == ["Not measured yet."]


def test_floors_of_small_batches_are_the_weights_and_of_large_ones_the_products() -> None:
    floor = TABLES["batch"].floor
    assert floor(1, 256).why == "weights 100% of the bytes"
    assert floor(512, 16).why == "products"
    assert TABLES["prompt"].floor(16, 16.0).why == "reading the weights"
    assert TABLES["images"].floor(32, 38_400).seconds > 32 * TABLES["images"].floor(1, 1_220).seconds


def test_a_table_goes_between_its_marks_and_nothing_else_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- roofline -->\nold\n<!-- /roofline -->\nafter\n")
    fill(page, "roofline", markdown(("a", "b"), [("1", "2")]))
    fill(page, "roofline", markdown(("a", "b"), [("3", "4")]))
    assert page.read_text() == (
        "before\n<!-- roofline -->\n| a | b |\n|---|---:|\n| 3 | 4 |\n<!-- /roofline -->\nafter\n"
    )
    with pytest.raises(ValueError, match="scaling"):
        fill(page, "scaling", [])


def test_the_page_has_the_marks_that_scripts_fill() -> None:
    text = (ROOT / "bench/README.md").read_text()
    for mark in ("roofline", *(f"scaling {name}" for name in TABLES)):
        assert f"<!-- {mark} -->\n" in text
        assert f"<!-- /{mark} -->" in text


def test_numbers_are_written_as_people_read_them() -> None:
    assert [seconds(value) for value in (1.5, 0.0123, 4.2e-5, None)] == ["1.5 s", "12.3 ms", "42 µs", "–"]
    assert [amount(value, "B") for value in (14.2e9, 6e12, 0)] == ["14.2 GB", "6 TB", "–"]


def test_a_dry_run_measures_every_stage_of_the_language_model(tmp_path: Path) -> None:
    output = tmp_path / "roofline.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench.roofline", "--dry-run", "--output", str(output)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert output.is_file()
    assert "vision tower" in done.stdout
