"""Recorded steps with prompts in them, a recorder in place of CUDA graphs: shapes, padding, pointers, and answers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.engine.rig import GREEDY, SETTINGS, Asked, running
from tests.engine.test_decode_graphs import branches
from tests.engine.test_loop_faults import Front
from triptych.config import LanguageSettings
from triptych.engine.batch import Stretch
from triptych.engine.capture import Recorder
from triptych.engine.runner import Runner, Work
from triptych.engine.sampler import Draw
from triptych.engine.step_graphs import StepGraphs, record_steps, step_shapes
from triptych.errors import ConfigError
from triptych.models.base import LanguageModel, StepShape

ON = replace(SETTINGS, graphs="on", max_sequences=4, prefill_chunk_tokens=200)


def prompt(tokens: int, blocks: Sequence[int], begin: int = 0) -> Stretch:
    numbers = np.arange(begin, begin + tokens)
    return Stretch(numbers % 50 + 5, np.tile(numbers, (3, 1)), begin, np.array(blocks), wants_logits=True)


def recorded(model: LanguageModel, **settings: object) -> Runner:
    runner = Runner(model, None, replace(ON, **settings))  # type: ignore[arg-type]
    runner.record()
    return runner


def steps_of(runner: Runner) -> StepGraphs:
    assert runner.step_graphs is not None
    return runner.step_graphs


def test_shapes_grow_in_large_steps_up_to_a_chunk_and_in_small_ones_from_there() -> None:
    few = step_shapes(LanguageSettings(max_sequences=20, prefill_chunk_tokens=300))
    assert few == [StepShape(tokens, 40, 20) for tokens in (32, 64, 128, 256, 300, 316, 320)]
    assert step_shapes(LanguageSettings(max_sequences=64))[-1] == StepShape(1024, 96, 32)
    beside = LanguageSettings(max_sequences=64, prefill_chunk_tokens=4096, mixed_chunk_tokens=896)
    assert [shape.tokens for shape in step_shapes(beside)][-6:] == [768, 896, 912, 928, 944, 960]
    assert step_shapes(LanguageSettings(max_sequences=1, prefill_chunk_tokens=8)) == [
        StepShape(tokens, 2, 1) for tokens in (8, 9)
    ]


@pytest.mark.parametrize("tokens", [(20, 3), (1, 45), (31, 33), (2, 1)], ids=str)
def test_a_recorded_step_makes_the_tokens_and_the_kv_of_an_eager_one(
    model: LanguageModel, text: Asked, tokens: tuple[int, int]
) -> None:
    """Two answers that go on, a prompt that begins, and one that goes on behind what is in its block."""
    first, second = tokens
    drawn, slabs = [], []
    for graphs in ("off", "on"):
        runner = recorded(model, graphs=graphs)
        runner._kv.normal_(generator=torch.Generator().manual_seed(1))
        stretches = [prompt(first, [20, 21, 22]), prompt(second, [24, 25, 26, 27], begin=18)]
        draws = [[Draw(GREEDY, 0, stretch.token_ids, ())] for stretch in stretches]
        made = runner.launch(Work(branches(text, 2), stretches, (), draws))
        drawn.append([token.id for token in runner.choose(made).read()])
        slabs.append(runner._kv)
    assert steps_of(runner).replays == 1
    assert len(drawn[0]) == 4
    assert drawn[0] == drawn[1]
    assert torch.allclose(*slabs, atol=1e-4)
    fresh = torch.empty_like(slabs[1]).normal_(generator=torch.Generator().manual_seed(1))
    changed = set((slabs[1] != fresh).flatten(1).any(dim=1).nonzero().flatten().tolist())
    place = text.layout.num_tokens // 16
    written = {20, 21, 22}.intersection(range(20, 20 + -(-first // 16)))
    goes_on = {24 + position // 16 for position in range(18, 18 + second)}
    assert changed == {place, 8 + place} | written | goes_on, "tokens that belong to nobody write nothing"


def test_steps_that_fit_no_shape_run_eagerly(model: LanguageModel) -> None:
    runner = recorded(model, prefill_chunk_tokens=40)
    for stretches in ([prompt(60, [1, 2, 3, 4])], [prompt(3, [block]) for block in range(1, 10)]):
        draws = [[Draw(GREEDY, 0, stretch.token_ids, ())] for stretch in stretches]
        assert len(runner.choose(runner.launch(Work((), stretches, (), draws))).read()) == len(stretches)
    assert steps_of(runner).replays == 0


def test_the_trial_leaves_the_slab_as_it_was(model: LanguageModel) -> None:
    runner = recorded(model)
    assert steps_of(runner).verify() == 0
    assert not runner._kv.any()


def test_memory_that_moves_behind_recorded_work_is_an_error(model: LanguageModel) -> None:
    runner = recorded(model)
    steps_of(runner)._tables.set_(torch.zeros(2, 2, dtype=torch.int32))  # type: ignore[call-overload]
    with pytest.raises(RuntimeError, match="the tables were reallocated"):
        runner.launch(Work((), [prompt(5, [1])], (), [[]]))


class Drifting(Front):
    """Makes other logits each time, as work does that kept a copy of what it should read anew."""

    times = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def step(self, *told: object) -> torch.Tensor:
        self.times += 1
        logits: torch.Tensor = self._model.step(*told)  # type: ignore[attr-defined]
        return logits + 3 * self.times


def test_what_is_recorded_wrong_is_refused_and_what_has_no_step_is_not_recorded(model: LanguageModel) -> None:
    kv, last_ids = torch.zeros(model.kv.slab_shape(40, 16)), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ConfigError, match=r"steps with prompts cannot be recorded: .* apart from eager ones"):
        record_steps(Drifting(model), kv, last_ids, ON, Recorder())
    assert record_steps(Drifting(model), kv, last_ids, replace(ON, graphs="auto"), Recorder()) is None
    assert record_steps(Front(model), kv, last_ids, ON, Recorder()) is None


def test_answers_about_pictures_are_the_same_with_recorded_steps(
    model: LanguageModel, text: Asked, image: Asked
) -> None:
    told = []
    for graphs in ("off", "on"):
        with running(model, graphs=graphs, pipeline="on", max_sequences=4, prefill_chunk_tokens=37) as pair:
            answers = [pair.answer(asked) for asked in (text, image, replace(image, branches=2))]
            told.append([[token.id for token in tokens] for answer in answers for tokens in answer.values()])
            steps = pair.prefill._runner.step_graphs
            assert (steps is not None and steps.replays > 3) is (graphs == "on")
    assert told[0] == told[1]
