"""Python's search for cycles never goes over what a worker's libraries have loaded."""

import subprocess
import sys

LOOK = """
import gc, torch, transformers
from triptych.garbage import settle
before = len(gc.get_objects())
settle()
print(before, len(gc.get_objects()), gc.get_freeze_count(), gc.get_threshold()[0])
"""


def test_what_is_there_once_all_is_loaded_is_not_looked_at_again() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    before, looked_at, kept, young = map(int, done.stdout.split())
    assert kept > before // 2
    assert looked_at < before // 10
    assert young > 700, "a request under way has more objects than Python's own threshold"
