"""Neighbours that tests on the GPU share, and the report of a run: what passed, on what, with the figures recorded."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.gpu_neighbour import ACTIONS
from tests.gpu.rig import GPU, NUM_UNITS, UNIT_BYTES, reader_of
from tests.transfer.neighbours import Neighbour
from triptych.loadgen.provenance import provenance
from triptych.transfer.reader import Reader

REPORT = "GPU_TESTS_REPORT"  # environment variable: where to write it


@pytest.fixture(scope="session")
def encoder() -> Iterator[Neighbour]:
    """A process with a slab of rows on the first GPU; tests use units and generations of their own."""
    with Neighbour("embedding", UNIT_BYTES, NUM_UNITS, device=GPU, actions=ACTIONS) as neighbour:
        yield neighbour


@pytest.fixture(scope="session")
def prefill() -> Iterator[Neighbour]:
    """A process with a slab of KV blocks on the first GPU."""
    with Neighbour("kv", UNIT_BYTES, NUM_UNITS, device=GPU, actions=ACTIONS) as neighbour:
        yield neighbour


@pytest.fixture
def reader(encoder: Neighbour, prefill: Neighbour) -> Iterator[Reader]:
    """Of both of them."""
    reader = reader_of(encoder.info, prefill.info)
    yield reader
    reader.close()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    path = os.environ.get(REPORT)
    if not path:
        return
    stats = terminalreporter.stats
    tests = [
        {
            "test": report.nodeid,
            "outcome": report.outcome,
            "seconds": round(report.duration, 3),
            **dict(report.user_properties),
        }
        for outcome in ("passed", "failed")
        for report in stats.get(outcome, [])
        if "tests/gpu" in report.nodeid
    ]
    record = {
        "what": "tests on the GPU",
        **provenance(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "passed": len(stats.get("passed", [])),
        "failed": len(stats.get("failed", [])),
        "skipped": len(stats.get("skipped", [])),
        "tests": tests,
    }
    Path(path).write_text(json.dumps(record, indent=1) + "\n")
