"""Scattered blocks land in their places and nowhere else, by either way."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from triptych.transfer import block_copy
from triptych.transfer.block_copy import fits_kernel, fused_copy, gathered_copy

CPU = torch.device("cpu")


@pytest.mark.parametrize("block_bytes", [1, 3, 4, 12, 64, 1002, 4096])
def test_blocks_of_any_size_land_in_their_places_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(block_copy, "_GATHER_STEP_BYTES", 3 * block_bytes)  # several steps, the last not full
    blocks = torch.randint(0, 256, (20, block_bytes), dtype=torch.uint8)
    places = torch.full((30, block_bytes), 7, dtype=torch.uint8)
    sources, targets = torch.randperm(20)[:8], torch.randperm(30)[:8]
    gathered_copy(blocks, places, sources, targets)
    wanted = torch.full((30, block_bytes), 7, dtype=torch.uint8)
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        wanted[target] = blocks[source]
    assert torch.equal(places, wanted)


@pytest.mark.parametrize("offset", [1, 4, 8])
def test_memory_that_begins_anywhere_is_copied(offset: int) -> None:
    whole = torch.randint(0, 256, (offset + 6 * 64,), dtype=torch.uint8)
    places = torch.zeros(6, 64, dtype=torch.uint8)
    gathered_copy(whole[offset:].view(6, 64), places, torch.arange(6), torch.arange(5, -1, -1))
    assert torch.equal(places.flip(0), whole[offset:].view(6, 64))


def test_the_kernel_is_given_only_what_it_can_read_in_wide_loads() -> None:
    memory = torch.zeros(4096 + 256, dtype=torch.uint8)
    aligned = memory[-memory.data_ptr() % 16 :][:4096]
    assert fits_kernel(aligned.view(32, 128), aligned.view(32, 128))
    assert not fits_kernel(aligned.view(64, 64), aligned.view(64, 64))
    assert not fits_kernel(memory[-memory.data_ptr() % 16 + 8 :][:4096].view(32, 128), aligned.view(32, 128))


def test_there_is_no_kernel_off_the_gpu() -> None:
    assert fused_copy(CPU) is None


def test_a_kernel_whose_copies_are_wrong_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    assert block_copy.trusted(gathered_copy, CPU) is gathered_copy
    assert block_copy.trusted(lambda blocks, places, sources, targets: places.copy_(places), CPU) is None
    assert "copies are wrong" in caplog.text

    def broken(blocks: torch.Tensor, places: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
        raise RuntimeError("no compiler")

    assert block_copy.trusted(broken, CPU) is None
    assert "no compiler" in caplog.text


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernel_copies_as_the_gather_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.transfer.interpreted_copy"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
