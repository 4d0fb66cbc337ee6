"""A raylet's end is noticed by itself, in a process of its own: it takes the Ray of whoever watches with it."""

import subprocess
import sys

SCRIPT = """
import os, signal, time
import psutil, ray
from triptych.cluster.raylet import RayletWatch

ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
watch = RayletWatch()
print("ended:", watch.has_ended(), flush=True)
next(child for child in psutil.Process().children(recursive=True) if child.name() == "raylet").kill()
killed_at = time.monotonic()
while not watch.has_ended() and time.monotonic() - killed_at < 10:
    time.sleep(0.01)
print("ended:", watch.has_ended(), flush=True)
watch.close()
os.kill(os.getpid(), signal.SIGKILL)  # what is left of Ray ends with it; to shut it down in order would take its time
"""


def test_the_end_of_a_raylet_is_noticed_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    told = [line for line in done.stdout.splitlines() if line.startswith("ended:")]
    assert told == ["ended: False", "ended: True"], done.stdout + done.stderr
