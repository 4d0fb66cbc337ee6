"""Where the time of a training step goes, told once."""

import torch
from torch.profiler import ProfilerActivity, profile

_FROM, _STEPS = 30, 10  # past compiling and recording


class Profiler:
    """Watches a few early steps if asked to, then prints their kernels, the dearest first."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._seen = 0
        self._running: profile | None = None

    def step(self) -> None:
        """To be called after each step."""
        if not self._wanted:
            return
        self._seen += 1
        if self._seen == _FROM:
            kinds = [ProfilerActivity.CUDA] if torch.cuda.is_available() else [ProfilerActivity.CPU]
            self._running = profile(activities=kinds)
            self._running.start()
        elif self._running is not None and self._seen == _FROM + _STEPS:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self._running.stop()
            order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
            table = self._running.key_averages().table(sort_by=order, row_limit=40, max_name_column_width=90)
            print(f"{_STEPS} steps:\n{table}", flush=True)
            self._running = None
