"""What is said of GPUs, of facts as machines have them."""

import json
import subprocess
import sys

import pytest

from triptych.config import GIB, load_settings
from triptych.doctor.finding import Asked, Verdict
from triptych.doctor.gpu import Gpu, GpuFacts, driver_version, judge_gpu, look_gpu
from triptych.doctor.gpu_sharing import judge_segments, look_cuda_ipc, look_segments

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (build)  Tue Sep 23 2025"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024"
CPU = Asked(load_settings(environment={}, flags={"serve.device": "cpu"}))


def facts(free: int = 79 * GIB, capability: tuple[int, int] = (9, 0)) -> GpuFacts:
    return GpuFacts("580.95.05", "13.0", (Gpu("NVIDIA H100", capability, 80 * GIB, free),))


@pytest.mark.parametrize(
    ("text", "version"), [(OPEN, "580.95.05"), (CLOSED, "535.183.01"), ("?", "of unknown version")]
)
def test_the_drivers_version_is_read(text: str, version: str) -> None:
    assert driver_version(text) == version


def test_a_good_gpu_is_told_with_driver_and_torch() -> None:
    finding = judge_gpu(facts(), "auto", 0.9)
    assert finding.verdict is Verdict.OK
    assert finding.seen == "NVIDIA H100 80 GiB; driver 580.95.05, torch for CUDA 13.0"


def test_a_gpu_whose_memory_others_hold_is_warned_of() -> None:
    finding = judge_gpu(facts(free=60 * GIB), "cuda", 0.9)
    assert finding.verdict is Verdict.WARN
    assert "60.0 GiB free" in finding.seen
    assert judge_gpu(facts(free=60 * GIB), "cuda", 0.7).verdict is Verdict.OK


def test_a_gpu_older_than_any_that_was_tried_is_warned_of() -> None:
    assert "capability 7.5" in judge_gpu(facts(capability=(7, 5)), "cuda", 0.9).seen


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (GpuFacts("580.95", ""), "built for the CPU"),
        (GpuFacts("470.1", "13.0", reason="driver too old"), "uses no GPU: driver too old"),
    ],
)
def test_a_gpu_that_cannot_be_used_fails_where_it_is_asked_for_and_is_warned_of_where_not(
    found: GpuFacts, told: str
) -> None:
    assert told in judge_gpu(found, "cuda", 0.9).seen
    assert judge_gpu(found, "cuda", 0.9).verdict is Verdict.FAIL
    assert judge_gpu(found, "auto", 0.9).verdict is Verdict.WARN


def test_a_machine_without_gpus_is_fine_unless_they_are_asked_for() -> None:
    assert judge_gpu(GpuFacts("", "13.0"), "auto", 0.9).verdict is Verdict.OK
    assert judge_gpu(GpuFacts("", "13.0"), "cuda", 0.9).verdict is Verdict.FAIL


def test_no_gpu_is_touched_where_workers_run_on_the_cpu() -> None:
    assert {look(CPU).verdict for look in (look_gpu, look_cuda_ipc, look_segments)} == {Verdict.OK}


@pytest.mark.parametrize("variable", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_expandable_segments_are_no_matter_where_slabs_lie_outside_of_them(variable: str) -> None:
    environment = {variable: "max_split_size_mb:128, expandable_segments:True"}
    assert judge_segments(environment, has_bindings=True).verdict is Verdict.OK
    finding = judge_segments(environment, has_bindings=False)
    assert finding.verdict is Verdict.WARN
    assert variable in finding.seen


def test_segments_that_are_off_are_told_so() -> None:
    assert judge_segments({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, has_bindings=False).seen == "off"


def test_a_neighbour_that_does_not_see_the_gpu_says_so_in_one_line() -> None:
    where = {"device": "GPU-of-somebody", "memory": "", "event": ""}
    command = [sys.executable, "-m", "triptych.doctor.gpu_reader", json.dumps(where)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "it does not see GPU GPU-of-somebody\n")
