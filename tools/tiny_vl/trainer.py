"""The training loop: steps, logs, exams, saves, and a clean end whenever it comes."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tools.tiny_vl import checkpoint
from tools.tiny_vl.attention import Way, attention_by
from tools.tiny_vl.config import Geometry, Recipe
from tools.tiny_vl.feed import WorkerFailed
from tools.tiny_vl.network import Network
from tools.tiny_vl.optimizer import Optimizer
from tools.tiny_vl.packing import Batch, Caps
from tools.tiny_vl.parameters import Layout, Parameters, initial_weights
from tools.tiny_vl.profiling import Profiler
from tools.tiny_vl.schedule import batch_of, newest_batch, oldest_batch, rate_share
from tools.tiny_vl.stepper import Inbox, Reading, Stepper, Tally

_MAX_BAD_STEPS = 5
_QUEUED_STEPS = 3  # that the host may be ahead of the device


class Diverged(Exception):
    """Losses or gradients are no numbers any more: lower the rates or look for the fault; saved states are sound."""


@dataclass(frozen=True, slots=True)
class Machine:
    """How steps are run; may differ between the legs of a run."""

    device: torch.device
    way: Way
    compiled: bool = False
    graphed: bool = False
    compute: torch.dtype = torch.float32
    small_state: bool = False  # momenta saved in bfloat16


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often, in steps, and for saves in seconds."""

    log_every: int = 25
    exam_every: int = 600
    save_seconds: float = 120.0
    profiled: bool = False  # print once where the time of a few early steps went


class Trainer:
    """A run of training, taken up where the state folder's latest save left it."""

    def __init__(
        self, geometry: Geometry, recipe: Recipe, caps: Caps, kinds: Sequence[str], machine: Machine, state: Path
    ) -> None:
        """Raises StateMismatch if the folder holds another run's state, StateUnreadable if it holds no sound one."""
        self._recipe, self._machine, self._kinds, self._state = recipe, machine, tuple(kinds), state
        self._facts: dict[str, Any] = {"geometry": asdict(geometry), "recipe": asdict(recipe), "caps": asdict(caps)}
        saved = checkpoint.load(state)
        if saved is not None:
            checkpoint.check_same(saved[2], self._facts)
        torch.manual_seed(recipe.seed)
        layout = Layout.of(geometry)
        if saved is None:
            flat = initial_weights(geometry, recipe.seed)
        else:
            with checkpoint.reading(state):
                flat = checkpoint.shaped(saved[1], "weights", (layout.num_all,))
        self._parameters = Parameters(layout, flat.to(machine.device), machine.compute)
        self._optimizer = Optimizer(self._parameters, recipe)
        self.step = 0
        if saved is not None:
            with checkpoint.reading(state):
                self._restore(saved[0], saved[1])
        attend = attention_by(machine.way)
        self._network = Network(geometry, attend, machine.device, machine.compiled)
        self._tally = Tally(len(self._kinds), machine.device)
        self._bad_steps = 0
        state.mkdir(parents=True, exist_ok=True)

    @property
    def weights(self) -> torch.Tensor:
        """[num_all] float32 on the device, laid out as Layout says."""
        return self._parameters.flat

    def train(self, batches: Iterator[Batch], exam: Sequence[Batch], stop: Callable[[], bool], rhythm: Rhythm) -> bool:
        """Train until the last step or until stop() says so, and save; returns whether the run is complete.

        batches: oldest_batch(self.step) and those after it; each may be gone once the next is asked for; they may end
            early, when stop() says so
        Raises Diverged, leaving the last sound state saved, and WorkerFailed, when all is saved.
        """
        with self._stream():
            try:
                return self._train(batches, exam, stop, rhythm)
            except WorkerFailed:
                self.save()
                raise

    def save(self) -> None:
        """Save the state as it is now."""
        tensors = {"weights": self._parameters.flat, **self._optimizer.state(), "cpu_random": torch.get_rng_state()}
        if self._machine.device.type == "cuda":
            tensors["cuda_random"] = torch.cuda.get_rng_state(self._machine.device)
        if self._machine.small_state:
            tensors["momentum"] = tensors["momentum"].bfloat16()
        checkpoint.save(self._state, self.step, tensors, self._facts)

    def _restore(self, step: int, tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in self._optimizer.state().items():
            tensor.copy_(checkpoint.shaped(tensors, name, tensor.shape))
        torch.set_rng_state(tensors["cpu_random"])
        if self._machine.device.type == "cuda" and "cuda_random" in tensors:
            torch.cuda.set_rng_state(tensors["cuda_random"], self._machine.device)
        self.step = step

    def _train(self, batches: Iterator[Batch], exam: Sequence[Batch], stop: Callable[[], bool], rhythm: Rhythm) -> bool:
        device = self._machine.device
        on_device = [batch.to(device) for batch in exam]
        inbox: Inbox | None = None
        wanted = oldest_batch(self.step, self._recipe)
        queued: deque[torch.cuda.Event] = deque()
        clock = _Clock()
        profiler = Profiler(rhythm.profiled)
        while self.step < self._recipe.steps and not stop():
            while wanted <= newest_batch(self.step, self._recipe):
                batch = clock.waiting(lambda: next(batches, None))
                if batch is None:
                    self.save()
                    return False
                if inbox is None:
                    inbox = Inbox(batch, self._recipe.echo_window + 1, device)
                    graphed = self._machine.graphed
                    stepper = Stepper(self._network, self._parameters, self._optimizer, inbox, self._tally, graphed)
                inbox.put(wanted, batch)
                wanted += 1
            assert inbox is not None
            clock.samples += inbox.take(batch_of(self.step, self._recipe))
            self._set_rates()
            stepper.run()
            self.step += 1
            self._hold_back(queued)
            profiler.step()
            if self.step % rhythm.log_every == 0 or self.step == self._recipe.steps:
                self._log(clock)
            if on_device and self.step % rhythm.exam_every == 0:
                self._hold_exam(on_device)
            if clock.since_save() > rhythm.save_seconds:
                self.save()
                clock.saved()
        self.save()
        return self.step >= self._recipe.steps

    def _stream(self) -> AbstractContextManager[Any]:
        if self._machine.device.type != "cuda":
            return nullcontext()
        # Not the default stream: only on another one can a step be recorded as a graph.
        torch.cuda.synchronize(self._machine.device)
        return torch.cuda.stream(torch.cuda.Stream(self._machine.device))  # type: ignore[no-untyped-call]

    def _set_rates(self) -> None:
        share = rate_share(self.step, self._recipe)
        self._optimizer.rates[0].fill_(share * self._recipe.muon_rate)
        self._optimizer.rates[1].fill_(share * self._recipe.adam_rate)

    def _hold_back(self, queued: deque[torch.cuda.Event]) -> None:
        if self._machine.device.type != "cuda":
            return
        # Sleeps rather than spins: the workers want the cores.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        queued.append(event)
        if len(queued) > _QUEUED_STEPS:
            queued.popleft().synchronize()

    def _log(self, clock: "_Clock") -> None:
        reading = self._tally.read()
        self._check(reading)
        seconds, waited, samples = clock.lap()
        right = {kind: (r, n) for kind, r, n in zip(self._kinds, reading.right, reading.seen, strict=True) if n}
        entry = {
            "step": self.step,
            "seconds": round(clock.total(), 2),
            "loss": round(reading.loss, 5),
            "grad_norm": round(reading.grad_norm, 4),
            "rate": rate_share(self.step - 1, self._recipe) * self._recipe.muon_rate,
            "ms_per_step": round(1e3 * seconds / max(1, reading.steps), 2),
            "samples_per_second": round(samples / seconds, 1),
            "wait_share": round(waited / seconds, 4),
            "bad_steps": self._bad_steps,
            "training_exact": {kind: round(r / n, 4) for kind, (r, n) in right.items()},
        }
        self._write(entry)
        exact = sum(r for r, _ in right.values()) / max(1, sum(n for _, n in right.values()))
        print(
            f"step {self.step}/{self._recipe.steps} {entry['seconds']:.0f} s"
            f"  loss {reading.loss:.4f}  exact {exact:.3f}"
            f"  {entry['ms_per_step']} ms/step  {entry['samples_per_second']:.0f} samples/s"
            f"  waiting {100 * waited / seconds:.0f} %",
            flush=True,
        )

    def _check(self, reading: Reading) -> None:
        self._bad_steps += reading.bad_steps
        if self._bad_steps > _MAX_BAD_STEPS:
            raise Diverged(
                f"{self._bad_steps} steps up to {self.step} had a loss or gradient that is no number, "
                f"expected at most {_MAX_BAD_STEPS}; the mean of the others' losses is {reading.loss:.3g}"
            )

    def _hold_exam(self, exam: Sequence[Batch]) -> None:
        tally = Tally(len(self._kinds), self._machine.device)
        for batch in exam:
            # Not under no_grad, although nothing is learned here: every piece would be compiled once more for that.
            tensors = batch.tensors()
            _, right = self._network.loss(self._parameters.leaves, tensors)
            tally.add_turns(right, tensors)
        reading = tally.read()
        scores = {
            kind: round(r / n, 4) for kind, r, n in zip(self._kinds, reading.right, reading.seen, strict=True) if n
        }
        self._write({"step": self.step, "exam": scores, "exam_samples": sum(reading.seen)})
        print(f"exam at {self.step}: " + "  ".join(f"{kind} {score:.2f}" for kind, score in scores.items()), flush=True)

    def _write(self, entry: dict[str, Any]) -> None:
        with (self._state / "log.jsonl").open("a") as log:
            log.write(json.dumps(entry) + "\n")


class _Clock:
    """Where the time went since the last lap."""

    def __init__(self) -> None:
        self._start = self._lap = self._save = time.monotonic()
        self._waited = 0.0
        self.samples = 0

    def waiting(self, work: Callable[[], Batch | None]) -> Batch | None:
        before = time.monotonic()
        result = work()
        self._waited += time.monotonic() - before
        return result

    def lap(self) -> tuple[float, float, int]:
        """(seconds, seconds waited for batches, samples) since the last lap."""
        now = time.monotonic()
        result = (max(1e-9, now - self._lap), self._waited, self.samples)
        self._lap, self._waited, self.samples = now, 0.0, 0
        return result

    def total(self) -> float:
        return time.monotonic() - self._start

    def since_save(self) -> float:
        return time.monotonic() - self._save

    def saved(self) -> None:
        self._save = time.monotonic()
