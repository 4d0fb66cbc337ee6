"""The report of a GPU run: what passed, on what, with the figures that tests recorded."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from triptych.loadgen.provenance import provenance

REPORT = "GPU_TESTS_REPORT"  # environment variable: where to write it


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
