import subprocess
import sys

# In a process of its own: this one has imported everything long ago.
_PROGRAM = """
import sys
import triptych.transfer.arena, triptych.transfer.leases
assert "torch" not in sys.modules, "arenas and leases need no torch"
import triptych.transfer.reader
import torch
assert not torch.cuda.is_initialized(), "importing must not touch the GPU"
"""


def test_importing_touches_no_gpu_and_arenas_need_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
