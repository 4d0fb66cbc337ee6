"""Trains tiny-vl: one command, as often as it takes, each time going on where the last one stopped."""

import argparse
import signal
import sys
import time
from dataclasses import dataclass
from types import FrameType

import torch
from tokenizers import Tokenizer

from tools.tiny_vl.batches import BatchDataset
from tools.tiny_vl.checkpoint import StateMismatch, StateUnreadable, latest_step
from tools.tiny_vl.config import Geometry, Recipe
from tools.tiny_vl.export import write_model
from tools.tiny_vl.families import KINDS
from tools.tiny_vl.feed import (
    ExamBatches,
    TooLittleSharedMemory,
    WorkerFailed,
    caps_for,
    check_shared_memory,
    stream,
)
from tools.tiny_vl.options import Parser, folder, seconds, whole
from tools.tiny_vl.packing import LONGEST_IMAGE, Batch, Caps
from tools.tiny_vl.schedule import num_batches, oldest_batch
from tools.tiny_vl.tokenizer import build_tokenizer
from tools.tiny_vl.trainer import Diverged, Machine, Rhythm, Trainer
from tools.tiny_vl.words import vocabulary

_MERGED_PATCHES = 4  # that become one row of embeddings


@dataclass(slots=True)
class Stop:
    """Asked for by a signal or by the clock."""

    deadline: float
    signalled: bool = False

    def __call__(self) -> bool:
        return self.signalled or time.monotonic() >= self.deadline

    def on_signal(self, _: int, __: FrameType | None) -> None:
        self.signalled = True


def main(arguments: list[str] | None = None) -> int:
    """Train, save, and once all steps are done write the model."""
    started = time.monotonic()
    options = parsed(arguments)
    stop = Stop(started + options.seconds)
    signal.signal(signal.SIGTERM, stop.on_signal)
    signal.signal(signal.SIGINT, stop.on_signal)
    geometry, caps = Geometry(), caps_for(options.patches)
    recipe = Recipe(seed=options.seed, steps=options.steps)
    machine = machine_for(options)
    try:
        return _run(options, geometry, recipe, caps, machine, stop)
    except (StateMismatch, StateUnreadable, Diverged, WorkerFailed, TooLittleSharedMemory, OSError) as error:
        print(f"stopped: {error}", file=sys.stderr, flush=True)
        return 1


def machine_for(options: argparse.Namespace) -> Machine:
    """How to run on the device asked for."""
    device = options.device
    on_gpu = device.type == "cuda"
    # What few products are left in float32 may use the matrix units.
    torch.set_float32_matmul_precision("high")
    return Machine(
        device=device,
        way=options.attention or ("flash" if on_gpu else "segments"),
        compiled=options.compile if options.compile is not None else on_gpu,
        graphed=options.graph and on_gpu,
        compute=torch.bfloat16 if on_gpu else torch.float32,
        small_state=options.small_state,
    )


def _run(
    options: argparse.Namespace, geometry: Geometry, recipe: Recipe, caps: Caps, machine: Machine, stop: Stop
) -> int:
    started = time.monotonic()
    check_shared_memory(caps, options.workers)
    tokenizer = build_tokenizer(vocabulary(), geometry.vocabulary)
    # The workers come first: they fork from a process that has no threads and no GPU yet.
    source = BatchDataset(recipe.seed, caps, num_batches(recipe), tokenizer)
    numbers = range(oldest_batch(latest_step(options.state), recipe), len(source))
    batches = stream(source, numbers, options.workers, pinned=machine.device.type == "cuda", stop=stop)
    exam = _exam(options, recipe, caps, tokenizer, stop)
    trainer = Trainer(geometry, recipe, caps, tuple(KINDS), machine, options.state)
    print(f"{trainer.weights.numel()} parameters; from step {trainer.step} of {recipe.steps}; {machine}", flush=True)
    print(f"{len(exam)} exam batches; set up in {time.monotonic() - started:.1f} s", flush=True)
    rhythm = Rhythm(options.log_every, options.exam_every, options.save_seconds, options.profile)
    if not trainer.train(batches, exam, stop, rhythm):
        print(f"saved at step {trainer.step} of {recipe.steps} in {options.state}; the same command goes on from there")
        return 0
    if options.output is not None:
        write_model(options.output, geometry, trainer.weights, tokenizer)
        print(f"done; model written to {options.output}")
    else:
        print(f"done; python -m tools.tiny_vl export --state {options.state} --output FOLDER writes the model")
    return 0


def _exam(options: argparse.Namespace, recipe: Recipe, caps: Caps, tokenizer: Tokenizer, stop: Stop) -> list[Batch]:
    if options.exam_samples == 0 or options.exam_every > recipe.steps:
        return []
    source = ExamBatches(recipe.seed, caps, tokenizer, options.exam_samples)
    workers = min(options.workers, len(source))
    return [batch.copy() for batch in stream(source, range(len(source)), workers, pinned=False, stop=stop)]


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Ends the process with one line and exit code 2 where something asked for cannot be."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.patches % _MERGED_PATCHES:
        parser.error(f"argument --patches: {options.patches} is not a multiple of {_MERGED_PATCHES}")
    if options.device.type == "cpu" and options.attention in ("flash", "varlen"):
        parser.error(f"argument --attention: {options.attention} needs a GPU, the CPU has segments")
    return options


def _device(text: str) -> torch.device:
    """A type for argparse: a device that is here."""
    try:
        device = torch.device(text)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cuda", "cpu"):
        raise argparse.ArgumentTypeError(f"{text} is unknown, expected cuda or cpu")
    # Counting leaves the driver alone, so that workers can be forked from this process.
    there = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= there:
        raise argparse.ArgumentTypeError(f"there is no {text} here, PyTorch sees {there} GPUs")
    return device


def _parser() -> Parser:
    parser = Parser(prog="python -m tools.tiny_vl train", description=main.__doc__)
    parser.add_argument("--state", type=folder, required=True, help="folder to save to and go on from")
    parser.add_argument("--output", type=folder, help="folder to write the finished model to")
    parser.add_argument("--steps", type=whole(1), default=Recipe().steps, help="of the whole run, all legs together")
    parser.add_argument("--seconds", type=seconds, default=float("inf"), help="stop and save after this long")
    parser.add_argument("--seed", type=int, default=Recipe().seed)
    parser.add_argument("--patches", type=whole(LONGEST_IMAGE), default=Caps().patches, help="14x14 patches in a batch")
    parser.add_argument(
        "--workers", type=whole(0), default=14, help="processes that make batches; 0: make them in between"
    )
    parser.add_argument(
        "--device",
        type=_device,
        default="cuda" if torch.cuda.device_count() else "cpu",
        help="cuda or cpu; default: the GPU if there is one",
    )
    parser.add_argument("--attention", choices=("flash", "varlen", "segments"), help="default: flash on a GPU")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="default: on a GPU")
    parser.add_argument("--graph", action=argparse.BooleanOptionalAction, default=False, help="replay a CUDA graph")
    parser.add_argument("--small-state", action="store_true", help="save momenta in bfloat16")
    parser.add_argument("--log-every", type=whole(1), default=25, help="steps")
    parser.add_argument("--exam-every", type=whole(1), default=600, help="steps")
    parser.add_argument("--exam-samples", type=whole(0), default=128, help="of each kind; 0: no exams")
    parser.add_argument("--save-seconds", type=seconds, default=120.0)
    parser.add_argument("--profile", action="store_true", help="tell once, early on, where a step's time goes")
    return parser
