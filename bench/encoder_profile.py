"""Where a turn's time on the device goes, kernel by kernel."""

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

_MOST_KERNELS = 15
_LONGEST_NAME = 100


def kernels_by_time(work: Callable[[], object]) -> list[tuple[str, int, float]]:
    """Name, calls and milliseconds of the kernels that take most, of one call on a CUDA device."""
    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        work()
        torch.cuda.synchronize()
    entries = [
        (each.key[:_LONGEST_NAME], each.count, each.self_device_time_total / 1e3) for each in trace.key_averages()
    ]
    return sorted(entries, key=lambda entry: -entry[2])[:_MOST_KERNELS]
