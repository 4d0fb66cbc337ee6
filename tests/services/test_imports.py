"""What a worker loads: only the role with a vision tower needs transformers, which takes seconds to import."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

_DECODES = """
import json, sys, torch
from triptych.cluster.roles import BUILDERS
from triptych.config import LanguageSettings, Settings
from triptych.journey import Role
from triptych.services.host import Placement, WorkerHost

host = WorkerHost(Placement("d", frozenset({Role.PREFILL, Role.DECODE}), device="cpu"), BUILDERS, Settings())
host.start()
host.stop()
print(json.dumps(sorted(sys.modules.keys() & {"torch", "transformers", "torchvision", "torch._dynamo"})))
"""


def test_a_worker_without_a_tower_loads_neither_transformers_nor_torchs_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DECODES], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == ["torch"]
