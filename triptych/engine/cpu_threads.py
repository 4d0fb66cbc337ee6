"""How many threads a step computes on, where that is the CPU."""

import torch

# Tokens of a step: below, a product is over before a second thread has woken up, and only disturbs what else runs.
MANY_ROWS = 64


class CpuThreads:
    """All threads of this process's arithmetic for large steps, half of them for small ones. Used by one thread.

    On two cores 2 threads instead of 1 gave loads of images 1.3 to 1.4 times the rate; decoding, step by small step,
    lost a tenth by it. torch counts threads for each thread that computes, but one that computes for the first time
    takes what was set last by any: so this sets what it wants only once its thread has begun.
    """

    def __init__(self, device: torch.device) -> None:
        """Takes the number that is set now for the most there are."""
        self._is_cpu = device.type == "cpu"
        self._most = torch.get_num_threads()
        self._set = 0

    def take(self, rows: int) -> None:
        """From now on this thread computes on as many as a step of so many rows is worth."""
        wanted = self._most if rows >= MANY_ROWS else max(1, self._most // 2)
        if self._is_cpu and wanted != self._set:
            torch.get_num_threads()  # has this thread begin, if it has not
            torch.set_num_threads(wanted)
            self._set = wanted
