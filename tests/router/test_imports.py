"""The router stays light: what it must never load, checked in a fresh process."""

import subprocess
import sys

FORBIDDEN = ("torch", "transformers", "ray", "PIL", "torchvision", "safetensors")
# Loaded where a collector is named; the API alone comes with FastAPI.
OF_TRACES = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto", "requests")


def test_the_router_loads_no_torch_and_nothing_else_that_is_heavy() -> None:
    script = (
        "import sys\n"
        "import triptych.router.app, triptych.router.server, triptych.router.__main__\n"
        f"print(*[name for name in {FORBIDDEN + OF_TRACES!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
