"""Choosing under a mask: nothing else is ever chosen, and rows without one are as they were."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.engine.test_sampler import draw, logits
from triptych.engine.sampler import Draw, Drawn, choose, read, wishes
from triptych.grammar.spec import Grammar

FORM = Grammar("regex", "a")
VOCAB = 70  # three words, the last one in part


def chosen(rows: Tensor, draws: Sequence[Draw], masks: dict[int, Sequence[int]]) -> list[Drawn]:
    wanted = {name: torch.from_numpy(each) for name, each in wishes(draws, None, len(rows), [-1] * len(draws)).items()}
    bits = np.zeros((len(masks), 96), dtype=np.uint8)
    for line, ids in enumerate(masks.values()):
        bits[line, list(ids)] = 1
    packed = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    given = {"masked": torch.tensor(list(masks)), "masks": torch.from_numpy(packed)} if masks else {}
    return read(choose(rows, wanted | given, draws, torch.empty(0, dtype=torch.int64))[1], draws)


@pytest.mark.parametrize("wishes", [{}, {"temperature": 1.0}, {"temperature": 2.0, "top_p": 0.5, "top_k": 3}])
def test_only_what_the_mask_has_is_chosen(wishes: dict[str, float]) -> None:
    rows = logits(20, vocab=VOCAB)
    masks = {row: sorted({row, 31, 32, 63, 69 - row}) for row in range(20)}
    draws = [draw(grammar=FORM, seed=row, **wishes) for row in range(20)]
    for row, drawn in enumerate(chosen(rows, draws, masks)):
        assert drawn.id in masks[row]
        assert drawn.logprob == pytest.approx(float(rows[row].log_softmax(-1)[drawn.id])), "of the model's own"


def test_a_single_token_that_is_left_is_chosen_however_unlikely() -> None:
    rows = logits(1, vocab=VOCAB)
    rows[0, 64] = -1e4
    for temperature in (0.0, 0.1, 1.0):
        assert chosen(rows, [draw(grammar=FORM, temperature=temperature)], {0: [64]})[0].id == 64


def test_rows_without_a_mask_are_chosen_as_if_there_were_none() -> None:
    rows = logits(6, vocab=VOCAB)
    draws = [draw(temperature=float(row % 2), seed=row) for row in range(6)]
    alone = chosen(rows, draws, {})
    draws[2] = draw(grammar=FORM)
    beside = chosen(rows, draws, {2: [5]})
    assert beside[2].id == 5
    assert [beside[row] for row in (0, 1, 3, 4, 5)] == [alone[row] for row in (0, 1, 3, 4, 5)]


def test_logits_that_are_no_numbers_do_not_hide_behind_a_mask() -> None:
    rows = logits(1, vocab=VOCAB)
    rows[0, 3] = torch.nan
    (drawn,) = chosen(rows, [draw(grammar=FORM)], {0: [5]})
    assert np.isnan(drawn.logprob)


def test_the_logits_are_left_as_they_are() -> None:
    rows = logits(2, vocab=VOCAB)
    before = rows.clone()
    chosen(rows, [draw(grammar=FORM), draw()], {0: [5]})
    assert torch.equal(rows, before)
