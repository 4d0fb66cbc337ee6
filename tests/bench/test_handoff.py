"""The hand-offs' bench: its arithmetic, and a dry run of all parts with little memory on the CPU."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from bench.handoff_figures import GROWTH_BYTES, figures, goals, growth, percentile
from bench.handoff_sizes import QWEN_7B

ROOT = Path(__file__).resolve().parent.parent.parent


def test_sizes_are_those_of_the_published_model() -> None:
    assert QWEN_7B.item_bytes == 1196 * 3584 * 2
    assert QWEN_7B.block_bytes == 896 << 10
    assert QWEN_7B.blocks * 16 == QWEN_7B.tokens
    assert QWEN_7B.units_per_item * QWEN_7B.unit_bytes >= QWEN_7B.item_bytes
    assert 2 * QWEN_7B.blocks <= QWEN_7B.pool  # sources and targets of pieces do not overlap


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_percentiles_are_values_that_so_many_do_not_exceed(share: float, value: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == value


def test_figures_are_of_the_median_and_overhead_is_what_a_plain_copy_does_not_take() -> None:
    found = figures([0.004, 0.002, 0.009], 10_000_000, plain=0.0005)
    assert found["p50_ms"] == pytest.approx(4.0)
    assert found["p99_ms"] == pytest.approx(9.0)
    assert found["gb_per_s"] == pytest.approx(2.5)
    assert found["overhead_p50_ms"] == pytest.approx(3.5)
    assert found["share_of_plain_rate"] == pytest.approx(0.125)


def samples(*device: int) -> list[dict[str, dict[str, int]]]:
    return [{"owner": {"resident": 7 * each, "device_of_all": each}, "consumer": {"resident": 5}} for each in device]


def test_growth_leaves_the_beginning_out_and_no_single_sample_decides() -> None:
    assert growth(samples(0, 50, 100, 100, 100, 900, 100, 100))["owner"]["device_of_all"] == 0
    assert growth(samples(*range(0, 400, 10)))["owner"]["device_of_all"] == pytest.approx(150, abs=5)


def test_goals_judge_each_figure_and_none_that_is_missing() -> None:
    slow, fast = (figures([each], 10, plain=0.0002) for each in (0.010, 0.0003))
    result: dict[str, Any] = {
        "device": "NVIDIA H200",
        "paths": {
            "cuda_ipc": {"1 item": fast, "16 items": slow, "KV, scattered": slow},
            "nixl": {"KV, in a row": fast},
        },
        "nixl_pieces": {"kv_times_unpacked": None},
        "blocks_on_the_device": {"chosen": {"ms": 0.3, "share_of_plain_rate": 0.9}},
        "endurance": {
            "nixl": {"hand_offs": 9, "growth_bytes": growth(samples(*range(0, 40 * GROWTH_BYTES, GROWTH_BYTES)))}
        },
    }
    judged = {goal["what"]: goal["holds"] for goal in goals(result)}
    assert judged == {
        "cuda_ipc, 1 item: overhead in ms": True,
        "cuda_ipc, 16 items: overhead in ms for each": True,
        "cuda_ipc, KV, scattered: overhead in ms": False,
        "cuda_ipc, KV blocks: share of a plain copy's rate, on the device": True,
        "nixl, KV, in a row: overhead in ms": True,
        "nixl: bytes of device memory more after 9 hand-offs": False,
    }
    assert list(goals(result | {"device": "cpu"})) == []


def test_a_dry_run_goes_through_every_part(tmp_path: Path) -> None:
    """A failed part is written down as an error, and makes the status 1."""
    path = tmp_path / "handoff.json"
    command = [sys.executable, "-m", "bench.handoff", "--quick", "--hand-offs", "3", "--endure", "12"]
    done = subprocess.run(
        [*command, "--output", str(path)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    result = json.loads(path.read_text())
    kinds = {"shm", "nixl", "nixl, one window for all"}
    if find_spec("nixl_cu13") is None:
        kinds = {"shm"}
        result["errors"] = {what: why for what, why in result["errors"].items() if "nixl" not in what}
    assert result["errors"] == {}, done.stderr[-2000:]
    assert kinds <= set(result["paths"])
    for kind in kinds:
        assert {"KV, scattered", "KV, in a row"} <= set(result["paths"][kind])
        assert all(each["hand_offs"] == 3 and each["p50_ms"] > 0 for each in result["paths"][kind].values())
    assert all(pair["claims_left"] == 0 for pair in result["pairs"].values())
    assert all(each["claims_left"] == 0 for each in result["endurance"].values())


def test_parts_that_the_limit_leaves_no_time_for_are_named(tmp_path: Path) -> None:
    path = tmp_path / "handoff.json"
    command = [sys.executable, "-m", "bench.handoff", "--quick", "--limit", "0", "--output", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert json.loads(path.read_text())["errors"]["nixl KV"] == "not begun: 0 s are up"
