"""What steps are told of running branches, kept from step to step, is what anybody would work out anew."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from tests.multimodal.parts import image, text
from triptych.engine.decode_rows import DecodeRows
from triptych.engine.sequence import DecodeSequence
from triptych.errors import InvariantViolation
from triptych.journey import RequestId
from triptych.multimodal.layout import lay_out
from triptych.sampling import Sampling

BLOCK = 4
LAYOUTS = [lay_out([text(3)]), lay_out([text(2), image(3, 4), text(3)]), lay_out([text(9)])]


def branch(rng: random.Random, number: int) -> DecodeSequence:
    layout = rng.choice(LAYOUTS)
    blocks = np.array(rng.sample(range(500), layout.num_tokens // BLOCK + 1))
    sampling = Sampling(seed=number, max_tokens=500)
    return DecodeSequence(RequestId(number.to_bytes(16)), 0, 0, number, layout, sampling, [number], blocks)


def check(rows: DecodeRows, branches: Sequence[DecodeSequence], before: Sequence[DecodeSequence]) -> None:
    told = rows.update(branches)
    assert told.token_ids.tolist() == [each.tokens[-1] for each in branches]
    assert told.sources.tolist() == [before.index(each) if each.num_inflight else -1 for each in branches]
    assert told.has_pending == any(each.num_inflight for each in branches)
    positions = [each.layout.num_tokens + len(each.tokens) - 1 + each.num_inflight for each in branches]
    assert told.positions.tolist() == positions
    assert told.ropes.tolist() == [at + each.layout.rope_delta for at, each in zip(positions, branches, strict=True)]
    pairs = list(zip(positions, branches, strict=True))
    assert told.slots.tolist() == [each.blocks[at // BLOCK] * BLOCK + at % BLOCK for at, each in pairs]
    assert told.width == max((at // BLOCK + 1 for at in positions), default=0)
    assert [draw.choice for draw in told.draws] == [each.choice for each in branches]
    assert list(told.histories) == [each.history for each in branches]
    assert len(set(told.histories)) == len(branches), "no two branches have one history"
    table = rows.table(len(branches) + 3, told.width + 40)
    for line, each in zip(table, branches, strict=False):
        assert line.tolist() == [*each.blocks, *[0] * (len(line) - len(each.blocks))]
    assert not table[len(branches) :].any(), "rows that stand for nobody are empty"


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_right_however_branches_come_grow_and_go(seed: int) -> None:
    rng = random.Random(seed)
    rows, running, number = DecodeRows(BLOCK), list[DecodeSequence](), 0
    for _ in range(150):
        before = list(running)
        for each in before:
            if each.num_inflight and rng.random() < 0.7:
                each.tokens.append(rng.randrange(100))
                each.num_inflight = 0
            elif not each.num_inflight and rng.random() < 0.7:
                each.tokens.append(rng.randrange(100)) if rng.random() < 0.5 else setattr(each, "num_inflight", 1)
            if each.next_position // BLOCK + 1 > len(each.blocks):
                each.blocks = np.append(each.blocks, rng.sample(range(500), rng.randrange(1, 4)))
        running = [each for each in running if rng.random() < 0.9]
        if rng.random() < 0.2:
            rng.shuffle(running)
        for _ in range(rng.choice([0, 0, 1, 3]) if len(running) < 90 else 0):
            running.append(branch(rng, number := number + 1))
        check(rows, running, before)


def test_a_token_in_flight_of_a_branch_that_was_not_in_the_step_before_is_a_broken_rule() -> None:
    rng = random.Random(0)
    first, second = branch(rng, 1), branch(rng, 2)
    rows = DecodeRows(BLOCK)
    rows.update([first])
    second.num_inflight = 1
    with pytest.raises(InvariantViolation, match="was not in the step before"):
        rows.update([first, second])
