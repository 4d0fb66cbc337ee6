"""What dcgm-exporter would tell of two GPUs; there are none here.

Names, labels and units are its own, the figures are made up.
"""

import math
import time

from tests.web import QuietHandler, WebServer

_GAUGES = {
    "DCGM_FI_DEV_GPU_UTIL": (60, 30),  # mean and swing; percent
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (0.6, 0.3),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (0.25, 0.2),
    "DCGM_FI_PROF_DRAM_ACTIVE": (0.5, 0.3),
    "DCGM_FI_DEV_FB_USED": (120_000, 50),  # MiB
    "DCGM_FI_DEV_FB_FREE": (23_000, 50),
    "DCGM_FI_DEV_POWER_USAGE": (420, 150),
    "DCGM_FI_DEV_GPU_TEMP": (55, 8),
    "DCGM_FI_DEV_XID_ERRORS": (0, 0),
    "DCGM_FI_PROF_PCIE_RX_BYTES": (4e9, 1e9),  # bytes a second, as the following
    "DCGM_FI_PROF_PCIE_TX_BYTES": (2e9, 1e9),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": (4e10, 1e10),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": (3e10, 1e10),
}


class GpuExporter(WebServer):
    """Serves /metrics as dcgm-exporter does."""

    def __init__(self) -> None:
        began = time.monotonic()

        class Handler(QuietHandler):
            def do_GET(handler) -> None:
                handler.answer(200, {"content-type": "text/plain"}, _exposed(time.monotonic() - began).encode())

        super().__init__(Handler)


def _exposed(age: float) -> str:
    lines = []
    for name, (mean, swing) in _GAUGES.items():
        lines.append(f"# TYPE {name} gauge")
        lines += [f"{name}{{{_labels(gpu)}}} {mean + swing * math.sin(age / 3 + gpu):g}" for gpu in range(2)]
    return "\n".join(lines) + "\n"


def _labels(gpu: int) -> str:
    return f'gpu="{gpu}",UUID="GPU-{gpu}",device="nvidia{gpu}",modelName="NVIDIA H200",Hostname="node-0"'
