"""One training step on the device: forward, backward, metrics and weights, without waiting for any of it.

On a GPU the step reads fixed buffers, so that it can also be recorded once as a CUDA graph and replayed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tools.tiny_vl.network import Network
from tools.tiny_vl.optimizer import Optimizer
from tools.tiny_vl.packing import Batch
from tools.tiny_vl.parameters import Parameters

_SPARE_PLACES = 4
_EAGER_STEPS = 4  # before the graph is recorded: kernels get compiled and libraries pick theirs meanwhile


@dataclass(frozen=True, slots=True)
class Reading:
    """What happened since the reading before.

    right, seen: turns by kind, in the order of kinds
    bad_steps: had a loss or gradient that is no number; their batches were skipped
    """

    steps: int
    loss: float
    grad_norm: float
    bad_steps: int
    right: list[int]
    seen: list[int]


class Tally:
    """Sums kept on the device; read() is the only wait."""

    def __init__(self, num_kinds: int, device: torch.device) -> None:
        self._sums = torch.zeros(4, device=device)  # steps, loss, norm, bad
        # The first place takes the padding.
        self._right = torch.zeros(num_kinds + 1, device=device)
        self._seen = torch.zeros(num_kinds + 1, device=device)

    def add_step(self, loss: Tensor, norm: Tensor) -> None:
        good = (loss.isfinite() & norm.isfinite()).float()
        self._sums.add_(torch.stack((good, loss.nan_to_num(0, 0, 0) * good, norm.nan_to_num(0, 0, 0) * good, 1 - good)))

    def add_turns(self, right: Tensor, batch: dict[str, Tensor]) -> None:
        """A turn is right if all its labels are, which is what greedy decoding would make an exact match."""
        kind = batch["turn_kind"] + 1
        wrong = torch.zeros(kind.shape[0] + 1, device=kind.device)
        wrong.index_add_(0, batch["label_turn"], (~right).float())
        self._right.index_add_(0, kind, (wrong[:-1] == 0).float())
        self._seen.index_add_(0, kind, torch.ones_like(wrong[:-1]))

    def read(self) -> Reading:
        """The sums so far; they start again from zero."""
        num_kinds = self._seen.shape[0]
        values = torch.cat((self._sums, self._right, self._seen)).tolist()
        for sums in (self._sums, self._right, self._seen):
            sums.zero_()
        steps, loss, norm, bad = values[:4]
        right, seen = values[5 : 4 + num_kinds], values[5 + num_kinds :]
        some = max(1.0, steps)
        return Reading(int(steps + bad), loss / some, norm / some, int(bad), _whole(right), _whole(seen))


def _whole(values: list[float]) -> list[int]:
    return [round(value) for value in values]


class Inbox:
    """The latest batches, kept on the device, and the one that the step reads.

    now: the batch in its turn; always the same tensors
    """

    def __init__(self, shape: Batch, places: int, device: torch.device) -> None:
        """shape: any batch of the run; places: how many of the latest are kept, at least"""
        self.now = {name: torch.empty_like(tensor, device=device) for name, tensor in shape.tensors().items()}
        # A few more, so that none is written over that a step still under way reads.
        self._places = [
            {name: torch.empty_like(tensor) for name, tensor in self.now.items()} for _ in range(places + _SPARE_PLACES)
        ]
        self._samples = [0] * len(self._places)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def put(self, number: int, batch: Batch) -> None:
        """Keep a batch; its memory may be used again once this returns. Steps under way go on meanwhile."""
        at = number % len(self._places)
        self._samples[at] = batch.num_samples
        if self._stream is None:
            self._copy(batch.tensors(), self._places[at])
            return
        with torch.cuda.stream(self._stream):
            self._copy(batch.tensors(), self._places[at])
        self._stream.synchronize()

    def take(self, number: int) -> int:
        """Make a kept batch the current one once all work given to the current stream so far is done.

        Returns its number of samples.
        """
        at = number % len(self._places)
        self._copy(self._places[at], self.now)
        return self._samples[at]

    @staticmethod
    def _copy(source: dict[str, Tensor], target: dict[str, Tensor]) -> None:
        for name, tensor in target.items():
            tensor.copy_(source[name], non_blocking=True)


class Stepper:
    """Runs steps on the batch in the inbox, on a stream of its own on a GPU.

    graphed: after a few steps record one as a CUDA graph, and replay that from then on
    """

    def __init__(
        self,
        network: Network,
        parameters: Parameters,
        optimizer: Optimizer,
        inbox: Inbox,
        tally: Tally,
        graphed: bool,
    ) -> None:
        self._network, self._parameters, self._optimizer = network, parameters, optimizer
        self._inbox, self._tally = inbox, tally
        self._graphed = graphed
        self._graph: torch.cuda.CUDAGraph | None = None
        self._num_run = 0

    @property
    def is_warm(self) -> bool:
        """Whether the steps to come are like the last one, with nothing left to compile or record."""
        return self._num_run > _EAGER_STEPS

    def run(self) -> None:
        """Queue one step; rates must be set. Must always be called on the same stream, not the default one."""
        if self._graphed and self._graph is None and self._num_run == _EAGER_STEPS:
            self._record()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._step()
        self._num_run += 1

    def _step(self) -> None:
        loss, right = self._network.loss(self._parameters.leaves, self._inbox.now)
        leaves = self._parameters.leaves
        grads = torch.autograd.grad(loss, [leaves[name] for name in self._parameters.layout.names])
        norm = self._optimizer.step(grads)
        self._tally.add_step(loss.detach(), norm)
        self._tally.add_turns(right, self._inbox.now)

    def _record(self) -> None:
        # thread_local: the loader's thread pins memory meanwhile, which the default mode takes for a fault of ours.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            self._step()
        self._graph = graph
