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
    """Takes batches to the device ahead of the step: copies run on a stream of their own, into two sets of buffers.

    now: the batch that the step reads; always the same tensors
    """

    def __init__(self, example: Batch, device: torch.device) -> None:
        self.now = {name: torch.empty_like(tensor, device=device) for name, tensor in example.tensors().items()}
        self._async = device.type == "cuda"
        if self._async:
            self._staged = [{name: torch.empty_like(value) for name, value in self.now.items()} for _ in range(2)]
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._ready = [_event() for _ in range(2)]
            self._free = [_event() for _ in range(2)]
            # The buffers may have been someone's whose last kernels still run, on a stream that copies don't wait for.
            torch.cuda.synchronize(device)
        self._turn = 0

    def take(self, batch: Batch) -> None:
        """Make the batch the current one once all work given to the current stream so far is done."""
        arriving = batch.tensors()
        if not self._async:
            for name, tensor in self.now.items():
                tensor.copy_(arriving[name])
            return
        at, self._turn = self._turn, 1 - self._turn
        # Waiting for an event that was never recorded is no wait.
        self._stream.wait_event(self._free[at])
        with torch.cuda.stream(self._stream):
            for name, tensor in self._staged[at].items():
                tensor.copy_(arriving[name], non_blocking=True)
            self._ready[at].record(self._stream)
        compute = torch.cuda.current_stream()
        compute.wait_event(self._ready[at])
        for name, tensor in self.now.items():
            tensor.copy_(self._staged[at][name])
        self._free[at].record(compute)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


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
