"""Training on the CPU at a size where a step takes milliseconds: learning, stopping, going on, saving."""

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer

from tools.tiny_vl import checkpoint
from tools.tiny_vl.chat import ChatEncoder
from tools.tiny_vl.checkpoint import StateMismatch, StateUnreadable
from tools.tiny_vl.config import Geometry, Recipe
from tools.tiny_vl.feed import WorkerFailed
from tools.tiny_vl.grids import Grids
from tools.tiny_vl.optimizer import orthogonal
from tools.tiny_vl.packer import Packer
from tools.tiny_vl.packing import Batch, Caps
from tools.tiny_vl.parameters import Layout, initial_weights
from tools.tiny_vl.scenes import Blank, Picture, Sample, Turn
from tools.tiny_vl.schedule import batch_of, newest_batch, num_batches, oldest_batch, rate_share
from tools.tiny_vl.stepper import Tally
from tools.tiny_vl.tokenizer import build_tokenizer
from tools.tiny_vl.train import Stop, parsed
from tools.tiny_vl.trainer import Diverged, Machine, Rhythm, Trainer

TINY = Geometry(
    hidden=64, heads=1, key_heads=1, vision_blocks=2, vision_mlp=64, full_blocks=(0,), layers=2, text_mlp=64,
    vocabulary=320,
)  # fmt: skip
SMALL = Caps(patches=512, tokens=512, images=16, windows=32, sequences=16, labels=64, turns=16)
RECIPE = Recipe(steps=12, warmup_steps=2, echo=2, echo_window=3)
KINDS = ("colour-of", "echo")
CPU = Machine(torch.device("cpu"), "segments")
OFTEN = Rhythm(log_every=2, exam_every=6)
COLOURS = {"red": (200, 30, 30), "green": (30, 160, 40)}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer([], TINY.vocabulary)


def a_batch(tokenizer: Tokenizer, number: int) -> Batch:
    rng = Random(number)
    packer = Packer(SMALL, ChatEncoder(tokenizer), Grids(), KINDS)
    for _ in range(8):
        colour = rng.choice(list(COLOURS))
        picture = Picture(Image.new("RGB", (56, 56), COLOURS[colour]), Blank(), noise=5)
        shown = Turn((picture, "Colour?"), colour[0], "colour-of")
        assert packer.add(Sample((shown if rng.random() < 0.7 else Turn(("Say k.",), "k", "echo"),)))
    return packer.finish()


def batches(tokenizer: Tokenizer, start: int) -> Iterator[Batch]:
    return (a_batch(tokenizer, number) for number in range(start, 10**6))


def trainer_at(state: Path, recipe: Recipe = RECIPE, machine: Machine = CPU) -> Trainer:
    return Trainer(TINY, recipe, SMALL, KINDS, machine, state)


class After:
    """Stops a run after a number of looks at the clock."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def never() -> bool:
    return False


def test_a_tiny_model_learns_two_colours(tokenizer: Tokenizer, tmp_path: Path) -> None:
    trainer = trainer_at(tmp_path, replace(RECIPE, steps=40, warmup_steps=4))
    assert trainer.train(batches(tokenizer, 0), [a_batch(tokenizer, 10**7)], never, Rhythm(10, 40))
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert losses[-1] < 0.2 * losses[0]
    assert log[-1]["exam"] == {"colour-of": 1.0, "echo": 1.0}


def test_a_run_in_two_legs_equals_one_in_one(tokenizer: Tokenizer, tmp_path: Path) -> None:
    whole = trainer_at(tmp_path / "whole")
    assert whole.train(batches(tokenizer, 0), [], never, OFTEN)
    first = trainer_at(tmp_path / "legs")
    assert not first.train(batches(tokenizer, 0), [], After(9), OFTEN)
    second = trainer_at(tmp_path / "legs")
    assert second.step == checkpoint.latest_step(tmp_path / "legs") == 9
    assert second.train(batches(tokenizer, oldest_batch(9, RECIPE)), [], never, OFTEN)
    assert torch.equal(whole.weights, second.weights)


def test_a_state_with_small_momenta_goes_on_nearly_alike(tokenizer: Tokenizer, tmp_path: Path) -> None:
    weights = []
    for name, small in (("exact", False), ("small", True)):
        machine = replace(CPU, small_state=small)
        trainer_at(tmp_path / name, machine=machine).train(batches(tokenizer, 0), [], After(5), OFTEN)
        second = trainer_at(tmp_path / name, machine=machine)
        second.train(batches(tokenizer, oldest_batch(5, RECIPE)), [], never, OFTEN)
        weights.append(second.weights)
    assert 0 < (weights[0] - weights[1]).norm() < 0.05 * weights[0].norm()


def test_another_recipe_does_not_go_on_from_a_state(tokenizer: Tokenizer, tmp_path: Path) -> None:
    trainer_at(tmp_path).train(batches(tokenizer, 0), [], After(1), OFTEN)
    with pytest.raises(StateMismatch, match=r"recipe.steps is 12 in the saved state, 13 was asked for"):
        trainer_at(tmp_path, replace(RECIPE, steps=13))


def test_weights_that_are_no_numbers_stop_the_run(tokenizer: Tokenizer, tmp_path: Path) -> None:
    trainer = trainer_at(tmp_path)
    trainer.weights[7] = float("nan")
    with pytest.raises(Diverged, match="no number"):
        trainer.train(batches(tokenizer, 0), [], never, OFTEN)
    assert checkpoint.load(tmp_path) is None


def test_a_run_that_is_told_to_stop_while_it_waits_for_a_batch_is_saved(tokenizer: Tokenizer, tmp_path: Path) -> None:
    three = iter([a_batch(tokenizer, number) for number in range(3)])  # no fourth comes
    trainer = trainer_at(tmp_path)
    assert not trainer.train(three, [], never, OFTEN)
    assert checkpoint.latest_step(tmp_path) == trainer.step > 2


def test_a_run_whose_workers_fail_is_saved(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def failing() -> Iterator[Batch]:
        yield from (a_batch(tokenizer, number) for number in range(3))
        raise WorkerFailed("batches-0 died")

    trainer = trainer_at(tmp_path)
    with pytest.raises(WorkerFailed):
        trainer.train(failing(), [], never, OFTEN)
    assert checkpoint.latest_step(tmp_path) == trainer.step > 2


def test_a_state_of_other_tensors_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    trainer_at(tmp_path).train(batches(tokenizer, 0), [], After(1), OFTEN)
    saved = checkpoint.load(tmp_path)
    assert saved is not None
    step, tensors, facts = saved
    for wrong in ({"first": tensors["first"][1:]}, {"weights": tensors["weights"][:1]}):
        checkpoint.save(tmp_path, step, tensors | wrong, facts)
        with pytest.raises(StateUnreadable, match=f"the state in {tmp_path} cannot be read"):
            trainer_at(tmp_path)
    del tensors["steps"]
    checkpoint.save(tmp_path, step, tensors, facts)
    with pytest.raises(StateUnreadable, match="KeyError: 'steps'"):
        trainer_at(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--steps 0", "--steps: 0 is not a whole number of at least 1"),
        ("--log-every 0", "--log-every: 0 is not"),
        ("--exam-every -1", "--exam-every: -1 is not"),
        ("--patches 0", "--patches: 0 is not a whole number of at least 1024"),
        ("--patches 2047", "--patches: 2047 is not a multiple of 4"),
        ("--workers -1", "--workers: -1 is not a whole number of at least 0"),
        ("--seconds nan", "--seconds: nan is not a number of seconds"),
        ("--device gpu", "--device: gpu is unknown, expected cuda or cpu"),
        ("--device mps", "--device: mps is unknown"),
        ("--device cuda:99", "--device: there is no cuda:99 here"),
        ("--device cpu --attention flash", "--attention: flash needs a GPU"),
        (f"--state {__file__}", "--state: "),
        (f"--state {__file__}/state", "test_training.py is a file, expected a folder"),
        (f"--output {__file__}", "test_training.py is a file, expected a folder"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(["--state", str(tmp_path / "state"), *arguments.split()])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "state").exists()


def test_a_signal_or_the_deadline_stops() -> None:
    stop = Stop(deadline=float("inf"))
    assert not stop()
    stop.on_signal(signal.SIGTERM, None)
    assert stop()
    assert Stop(deadline=0.0)()


def test_the_rate_rises_stays_and_falls() -> None:
    recipe = Recipe(steps=1000, warmup_steps=100, decay_from=0.5, final_share=0.01)
    shares = [rate_share(step, recipe) for step in range(1001)]
    assert shares[0] == 0.01
    assert set(shares[99:501]) == {1.0}
    assert shares[500:] == sorted(shares[500:], reverse=True)
    assert shares[1000] == pytest.approx(0.01)


@pytest.mark.parametrize("shape", [(3, 64, 64), (2, 48, 96), (2, 96, 48)])
def test_orthogonal_brings_all_singular_values_near_one(shape: tuple[int, ...]) -> None:
    stack = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(stack))
    assert values.max() < 1.3
    assert values.median() > 0.6


def test_stacks_cover_all_matrices_and_thirds_of_fused_ones() -> None:
    layout = Layout.of(Geometry())
    flat = initial_weights(Geometry(), 0)
    views = layout.views(flat)
    assert sum(stack.view(flat).numel() for stack in layout.stacks) == layout.num_matrix
    third = views["visual.blocks.2.attn.qkv.weight"][256:512]
    squares = next(stack for stack in layout.stacks if (stack.rows, stack.columns) == (256, 256)).view(flat)
    assert any(torch.equal(third, square) for square in squares)
    assert 10_000_000 < flat.numel() < 12_000_000


def test_a_turn_is_right_when_all_its_tokens_are() -> None:
    tally = Tally(2, torch.device("cpu"))
    batch = {
        "label_turn": torch.tensor([0, 0, 1, 2, 2, 4], dtype=torch.int32),
        "turn_kind": torch.tensor([0, 1, 1, -1], dtype=torch.int32),
    }
    tally.add_turns(torch.tensor([True, False, True, True, True, True]), batch)
    reading = tally.read()
    assert (reading.right, reading.seen) == ([0, 2], [1, 2])
    assert tally.read().seen == [0, 0]


def test_every_batch_is_trained_on_when_it_comes_and_others_again_within_the_window() -> None:
    recipe = Recipe(steps=403, echo=4, echo_window=5)
    used = [batch_of(step, recipe) for step in range(recipe.steps)]
    assert used[::4] == list(range(num_batches(recipe)))
    for step, number in enumerate(used):
        assert oldest_batch(step, recipe) <= number <= newest_batch(step, recipe)
    again = [newest_batch(step, recipe) - number for step, number in enumerate(used) if step % 4 and step > 40]
    assert set(again) == {1, 2, 3, 4, 5}
