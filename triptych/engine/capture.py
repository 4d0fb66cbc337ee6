"""Work on fixed tensors, recorded once and done again: as a CUDA graph, or on the CPU as the function that it is."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from triptych.transfer.cuda_events import LOWEST_PRIORITY, new_stream

Work = Callable[[], None]


class Capture(Protocol):
    """How work on fixed tensors is made repeatable."""

    def capture(self, work: Work) -> Work:
        """What does the same work again, on the same tensors, however often it is called."""


class Recorder:
    """Keeps the work as it is: for the CPU, which would take long to run each at its full size first."""

    def capture(self, work: Work) -> Work:
        return work


class CudaCapture:
    """CUDA graphs that share one memory pool: they are replayed one at a time, and leave nothing in it."""

    def __init__(self, device: torch.device, priority: int = LOWEST_PRIORITY) -> None:
        """priority: of the graphs' kernels, wherever they are replayed: they keep that of the recording stream"""
        self._device = device
        self._stream = new_stream(device, priority)
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Work) -> Work:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            work()  # libraries allocate and choose kernels in a first call, which a capture would not survive
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # thread_local: other roles of this process may allocate meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph.replay


def pointers(tensors: Mapping[str, object]) -> dict[str, int]:
    """Where each tensor is. Raises TypeError for what is none."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"captured work reads {name!r}, which is a {type(tensor).__name__}, expected a tensor")
    return {name: tensor.data_ptr() for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
