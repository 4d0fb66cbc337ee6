"""Recorded decoding steps, a recorder in place of CUDA graphs: choice, padding, pointers, and the trial at start."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.engine.rig import GREEDY, SETTINGS, Asked, running
from tests.engine.test_loop_faults import Front
from triptych.config import LanguageSettings
from triptych.engine.capture import Recorder
from triptych.engine.decode_graphs import Bucket, DecodeGraphs, buckets, capture_for, record
from triptych.engine.decode_rows import DecodeRows
from triptych.engine.runner import Runner, Work
from triptych.engine.sequence import DecodeSequence
from triptych.errors import ConfigError
from triptych.journey import RequestId
from triptych.models.base import DecodeInputs, LanguageModel

ON = replace(SETTINGS, graphs="on", max_sequences=4)


def branches(asked: Asked, count: int) -> list[DecodeSequence]:
    """Each with eight blocks of its own."""
    made = []
    for number in range(count):
        blocks = np.arange(8 * number, 8 * number + 8)
        name = RequestId(bytes([number]) * 16)
        made.append(DecodeSequence(name, 0, 0, 0, asked.layout, GREEDY, [number + 1], blocks))
    return made


def test_shapes_are_powers_of_two_up_to_the_most_branches_and_widths_up_to_the_longest_context() -> None:
    settings = LanguageSettings(max_sequences=6, block_size=16)
    assert buckets(settings, 100) == [Bucket(rows, 7) for rows in (1, 2, 4, 6)]
    widths = [width for rows, width in buckets(settings, 100_000) if rows == 6]
    assert widths == [256, 2048, 6250]
    assert buckets(LanguageSettings(max_sequences=1), 16) == [Bucket(1, 1)]


def test_a_step_takes_the_smallest_shape_that_it_fits(model: LanguageModel, text: Asked) -> None:
    kv = torch.zeros(model.kv.slab_shape(40, 16))
    shapes = [Bucket(rows, width) for rows in (1, 2, 4) for width in (4, 6)]
    graphs = DecodeGraphs(model, kv, torch.zeros(4, dtype=torch.int64), 16, shapes, Recorder())  # type: ignore[arg-type]

    def chosen(count: int, extra: int) -> Bucket | None:
        members = branches(text, count)
        members[-1].tokens = [1] * extra
        return graphs.bucket(DecodeRows(16).update(members))

    assert 48 < text.layout.num_tokens < 60, "four blocks, or this proves nothing"
    assert chosen(1, 1) == Bucket(1, 4)
    assert chosen(3, 1) == Bucket(4, 4)
    assert chosen(2, 20) == Bucket(2, 6)
    assert chosen(2, 60) is None, "what is longer than any shape runs eagerly"


def test_rows_that_stand_for_no_branch_write_nothing_and_change_nothing(model: LanguageModel, text: Asked) -> None:
    runners = [Runner(model, None, replace(ON, graphs=graphs)) for graphs in ("off", "on")]
    drawn = []
    for runner in runners:
        runner.record()
        runner._kv.normal_(generator=torch.Generator().manual_seed(1))
        made = runner.launch(Work(branches(text, 3)))
        drawn.append([token.id for token in runner.choose(made).read()])
    assert runners[1].graphs is not None
    assert runners[1].graphs.replays == 1
    assert drawn[0] == drawn[1]
    assert torch.allclose(runners[0]._kv, runners[1]._kv, atol=1e-4)
    fresh = torch.empty_like(runners[1]._kv).normal_(generator=torch.Generator().manual_seed(1))
    changed = (runners[1]._kv != fresh).flatten(1).any(dim=1).nonzero().flatten().tolist()
    place = text.layout.num_tokens // 16
    assert changed == [8 * number + place for number in range(3)]


def test_the_trial_leaves_the_slab_as_it_was(model: LanguageModel) -> None:
    runner = Runner(model, None, ON)
    runner.record()
    assert runner.graphs is not None
    assert runner.graphs.verify() == 0
    assert not runner._kv.any()


def test_memory_that_moves_behind_recorded_work_is_an_error(model: LanguageModel, text: Asked) -> None:
    runner = Runner(model, None, ON)
    runner.record()
    graphs = runner.graphs
    assert graphs is not None
    rows = DecodeRows(16)
    told = rows.update(branches(text, 1))
    bucket = graphs.bucket(told)
    assert bucket is not None
    with torch.inference_mode():
        graphs.replay(bucket, told, rows)
        graphs._last_ids.set_(torch.zeros(4, dtype=torch.int64))  # type: ignore[call-overload]
        with pytest.raises(RuntimeError, match="the last ids were reallocated"):
            graphs.replay(bucket, told, rows)


class Recordable(Front):
    """A front whose decoding can be recorded too."""

    def decode(self, inputs: DecodeInputs, kv_slab: Tensor) -> Tensor:
        logits: Tensor = self._model.decode(inputs, kv_slab)  # type: ignore[attr-defined]
        return self.distort(logits)

    def distort(self, logits: Tensor) -> Tensor:
        return logits


class Drifting(Recordable):
    """Makes other logits each time, as work does that kept a copy of what it should read anew."""

    times = 0

    def distort(self, logits: Tensor) -> Tensor:
        self.times += 1
        return logits + 3 * self.times


class Failing(Recordable):
    def distort(self, logits: Tensor) -> Tensor:
        raise RuntimeError("an operation that no graph takes")


@pytest.mark.parametrize(
    ("front", "reason"),
    [
        (Front, "no step that can be"),
        (Failing, "an operation that no graph takes"),
        (Drifting, "apart from eager ones"),
    ],
)
def test_what_cannot_be_recorded_runs_eagerly_with_a_warning_or_is_refused(
    model: LanguageModel, front: type[Front], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    kv, last_ids = torch.zeros(model.kv.slab_shape(40, 16)), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ConfigError, match=f"language.graphs is on, but decoding steps cannot be recorded: .*{reason}"):
        record(front(model), kv, last_ids, ON, Recorder())
    with caplog.at_level(logging.WARNING):
        assert record(front(model), kv, last_ids, replace(ON, graphs="auto"), Recorder()) is None
    assert reason in caplog.text


def test_settings_say_whether_decoding_is_recorded() -> None:
    cpu = torch.device("cpu")
    assert [capture_for(graphs, cpu) is not None for graphs in ("off", "auto", "on")] == [False, False, True]


@pytest.mark.parametrize("counts", [(1, 2, 3, 4), (4, 1, 3)])
def test_branches_that_come_and_go_between_shapes_keep_their_answers(
    model: LanguageModel, text: Asked, counts: Sequence[int]
) -> None:
    with running(model, graphs="on", pipeline="on", max_sequences=4) as pair:
        lengths = [replace(GREEDY, max_tokens=5 + 3 * count) for count in counts]
        questions = [replace(text, sampling=sampling) for sampling in lengths]
        begun = [(asked, *pair.begin(asked)) for asked in questions]
        for asked, request_id, first in begun:
            pair.decode.decode(asked.decode_job(request_id, first), pair.sink)
        answers = [[token.id for token in pair.sink.answer(*each[1:])[0]] for each in begun]
    longest = max(answers, key=len)
    assert answers == [longest[: len(answer)] for answer in answers]
    assert [len(answer) for answer in answers] == [sampling.max_tokens for sampling in lengths]
