"""The sampler: greedy, filters equal to transformers', draws that are right, reproducible and company-blind."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tests.engine.drawing import adjusted
from triptych.engine.sampler import Draw, Drawn, sample
from triptych.sampling import Sampling

VOCAB = 50


def logits(rows: int, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def draw(prompt: tuple[int, ...] = (1, 2), generated: tuple[int, ...] = (), choice: int = 0, **sampling: Any) -> Draw:
    settings = {"temperature": 0.0, "max_tokens": 1000} | sampling
    return Draw(Sampling(**settings), choice, np.array(prompt, dtype=np.int32), generated)


def sampled(rows: Tensor, draws: list[Draw]) -> list[Drawn]:
    return sample(rows, range(len(draws)), draws)


def many(row: Tensor, count: int, **sampling: Any) -> list[int]:
    """Ids drawn from one row by `count` different choices."""
    draws = [draw(choice=choice, **{"temperature": 1.0} | sampling) for choice in range(count)]
    return [drawn.id for drawn in sample(row[None], [0] * count, draws)]


def test_greedy_takes_the_first_of_the_largest_logits() -> None:
    row = torch.zeros(1, VOCAB)
    row[0, [7, 30]] = 1.5
    assert sampled(row, [draw()])[0].id == 7


def test_logprobs_are_those_of_the_raw_distribution() -> None:
    rows = logits(3)
    wanted = rows.log_softmax(-1)
    draws = [
        draw(),
        draw(temperature=0.3, top_k=2, seed=4),
        draw(presence_penalty=2.0, generated=(int(rows[2].argmax()),)),
    ]
    for place, drawn in enumerate(sampled(rows, draws)):
        assert drawn.logprob == float(wanted[place, drawn.id])


def test_top_logprobs_are_the_most_likely_of_the_raw_distribution_each_as_many_as_asked() -> None:
    rows = logits(3)
    draws = [draw(top_logprobs=3), draw(), draw(top_logprobs=5, logit_bias={1: 50.0})]
    tops = [drawn.top for drawn in sampled(rows, draws)]
    assert [len(top) for top in tops] == [3, 0, 5]
    values, ids = rows.log_softmax(-1).topk(5)
    assert [id for id, _ in tops[2]] == ids[2].tolist()
    assert [value for _, value in tops[2]] == values[2].tolist()


def test_more_alternatives_than_the_vocabulary_has_gives_the_vocabulary() -> None:
    assert len(sampled(logits(1, vocab=4), [draw(top_logprobs=20)])[0].top) == 4


def test_branches_draw_from_one_row_with_their_own_randomness() -> None:
    row = logits(1) / 3
    draws = [draw(temperature=1.0, seed=3, choice=choice) for choice in range(40)]
    assert len({drawn.id for drawn in sample(row, [0] * 40, draws)}) > 10


def test_a_draw_does_not_depend_on_the_rows_beside_it() -> None:
    rng = random.Random(1)
    rows = logits(32)
    draws = [
        draw(
            generated=tuple(rng.randrange(VOCAB) for _ in range(rng.randrange(6))),
            choice=rng.randrange(3),
            temperature=rng.choice([0.0, 0.7, 1.0, 1.6]),
            top_k=rng.choice([0, 0, 5]),
            top_p=rng.choice([1.0, 0.9, 0.4]),
            min_p=rng.choice([0.0, 0.05]),
            seed=rng.randrange(2**63),
            repetition_penalty=rng.choice([1.0, 1.3]),
            frequency_penalty=rng.choice([0.0, 0.5]),
            top_logprobs=rng.randrange(4),
        )
        for _ in range(32)
    ]
    together = sampled(rows, draws)
    assert [sampled(rows[place : place + 1], [draws[place]])[0] for place in range(32)] == together
    order = list(range(32))
    rng.shuffle(order)
    assert sample(rows, order, [draws[place] for place in order]) == [together[place] for place in order]


def test_the_same_seed_gives_the_same_tokens_and_another_does_not() -> None:
    row = logits(1)[0]
    assert many(row, 50, seed=11) == many(row, 50, seed=11)
    assert many(row, 50, seed=11) != many(row, 50, seed=12)


def test_draws_follow_the_distribution() -> None:
    row, count = logits(1, vocab=12)[0] / 3, 20_000
    found = np.bincount(many(row, count, seed=5), minlength=12)
    expected = row.double().softmax(-1).numpy() * count
    assert float(((found - expected) ** 2 / expected).sum()) < 32  # 11 degrees of freedom: 4.5 deviations


def test_a_temperature_near_zero_is_greedy() -> None:
    rows = logits(8)
    draws = [draw(temperature=1e-6, seed=seed) for seed in range(8)]
    assert [drawn.id for drawn in sampled(rows, draws)] == rows.argmax(-1).tolist()


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_k": 3},
        {"top_p": 0.5},
        {"top_p": 0.97, "temperature": 1.7},
        {"min_p": 0.08},
        {"top_k": 8, "top_p": 0.8},
        {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "temperature": 0.6},
        {"top_k": 1000},
        {"top_p": 1e-9},
    ],
)
def test_filters_keep_what_transformers_keeps(sampling: dict[str, Any]) -> None:
    rows = logits(20)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.get("temperature", 1.0) + 0.0)])
    if "top_k" in sampling:
        warpers.append(TopKLogitsWarper(sampling["top_k"]))
    if "top_p" in sampling:
        warpers.append(TopPLogitsWarper(sampling["top_p"]))
    if "min_p" in sampling:
        warpers.append(MinPLogitsWarper(sampling["min_p"]))
    kept = warpers(torch.zeros(20, 1, dtype=torch.int64), rows.clone()).isfinite()
    for place in range(20):
        counts = np.bincount(many(rows[place], 400, **sampling), minlength=VOCAB)
        assert not counts[~kept[place].numpy()].any(), "a filtered id was drawn"
        share = torch.where(kept[place], rows[place], -torch.inf).div(sampling.get("temperature", 1.0)).softmax(-1)
        assert counts[share.numpy() > 0.03].all(), "a likely id that passes was never drawn"


def test_filters_that_let_everything_pass_change_nothing() -> None:
    row = logits(1)[0] / 3
    free = many(row, 500, seed=2)
    assert many(row, 500, seed=2, top_k=VOCAB, top_p=1.0) == free
    assert many(row, 500, seed=2, min_p=1e-30) == free


def test_rounding_that_swaps_two_ranks_does_not_move_a_draw() -> None:
    """Draws by rank would lose the token with the place; these go by id."""
    row = logits(1)[0]
    row[[10, 40]] = 2.0
    nudged = row.clone()
    nudged[40] += 1e-6
    assert many(row, 2000, seed=9, top_p=0.95) == many(nudged, 2000, seed=9, top_p=0.95)


def test_the_repetition_penalty_is_transformers_own() -> None:
    rows = logits(2)
    draws = [
        draw(prompt=(3, 3, 9), generated=(11, 9), repetition_penalty=1.4),
        draw(prompt=(3, 4, 5), generated=(6, 7), repetition_penalty=0.8),
    ]
    ids = torch.tensor([[3, 3, 9, 11, 9], [3, 4, 5, 6, 7]])
    for place, penalty in enumerate((1.4, 0.8)):
        wanted = RepetitionPenaltyLogitsProcessor(penalty)(ids[place : place + 1], rows[place : place + 1].clone())
        assert torch.equal(adjusted(rows, draws)[place : place + 1], wanted)


def test_presence_and_frequency_penalties_count_generated_tokens_alone() -> None:
    rows = torch.zeros(1, VOCAB)
    one = draw(prompt=(1, 1, 1), generated=(5, 5, 8), presence_penalty=0.5, frequency_penalty=0.25)
    found = adjusted(rows, [one])[0]
    assert found[1] == 0
    assert float(found[5]) == -1.0
    assert float(found[8]) == -0.75


def test_logit_bias_adds_up_with_penalties() -> None:
    one = draw(generated=(5,), presence_penalty=1.0, logit_bias={5: 4.0, 6: -2.0})
    found = adjusted(torch.zeros(1, VOCAB), [one])[0]
    assert (float(found[5]), float(found[6])) == (3.0, -2.0)


def test_end_tokens_are_impossible_before_min_tokens_and_possible_from_there() -> None:
    row = torch.zeros(1, VOCAB)
    row[0, 9] = 50.0
    settings: dict[str, Any] = {"stop_token_ids": (9, 10), "min_tokens": 2}
    assert sampled(row, [draw(generated=(1,), **settings)])[0].id == 0
    assert sampled(row, [draw(generated=(1, 1), **settings)])[0].id == 9
    assert sampled(row, [draw(generated=(1,), ignore_eos=True, **settings)])[0].id == 9


def test_logits_that_nobody_adjusts_are_not_copied() -> None:
    rows = logits(2)
    assert adjusted(rows, [draw(), draw(temperature=1.0)]) is rows


def test_adjusting_leaves_the_models_logits_alone() -> None:
    rows = logits(1)
    before = rows.clone()
    adjusted(rows, [draw(generated=(1,), presence_penalty=2.0, repetition_penalty=2.0)])
    assert torch.equal(rows, before)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_nan_says_so_and_leaves_the_others_right(temperature: float) -> None:
    rows = logits(3)
    whole = sampled(rows, [draw(temperature=temperature, top_p=0.9, seed=seed) for seed in range(3)])
    rows[1] = torch.nan
    found = sampled(rows, [draw(temperature=temperature, top_p=0.9, seed=seed) for seed in range(3)])
    assert math.isnan(found[1].logprob)
    assert (found[0], found[2]) == (whole[0], whole[2])


def test_a_row_with_nothing_left_to_choose_says_so() -> None:
    rows = torch.zeros(3, VOCAB)
    everything = tuple(range(VOCAB))
    for temperature in (0.0, 1.0):
        settings: dict[str, Any] = {"temperature": temperature, "stop_token_ids": everything}
        found = sampled(rows, [draw(**settings), draw(min_tokens=1, **settings), draw(**settings)])
        assert [math.isnan(drawn.logprob) for drawn in found] == [False, True, False]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_that_leave_float32_say_so(temperature: float) -> None:
    rows = torch.full((1, VOCAB), 3e38)
    assert math.isnan(sampled(rows, [draw(temperature=temperature, repetition_penalty=0.01)])[0].logprob)


EXTREMES: dict[str, list[Any]] = {
    "temperature": [0.0, 1e-45, 1e-30, 1e-6, 0.01, 1.0, 100.0],
    "top_p": [1e-45, 1e-6, 0.5, 1.0],
    "top_k": [0, 1, 3, (1 << 32) - 1],
    "min_p": [0.0, 1e-45, 1.0],
    "presence_penalty": [-2.0, 0.0, 2.0],
    "frequency_penalty": [-2.0, 0.0, 2.0],
    "repetition_penalty": [0.01, 1.0, 100.0],
    "logit_bias": [{}, {0: 100.0, 1: -100.0}, dict.fromkeys(range(VOCAB), -100.0)],
    "min_tokens": [0, 1000],
    "stop_token_ids": [(), (0, 7), tuple(range(VOCAB))],
    "seed": [0, 1, (1 << 64) - 1],
}


def extreme_rows(generator: torch.Generator) -> Tensor:
    """[12, VOCAB]: small, large, equal, and broken in every way a row can be."""
    rows = torch.randn(12, VOCAB, generator=generator)
    scales = torch.tensor([1e-42, 1.0, 100.0, 1e4, 1e30, 1e38, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    rows = (rows * scales[:, None]).clamp(-3e38, 3e38)
    rows[7, ::2] = -torch.inf
    rows[8] = -torch.inf
    rows[9, 5] = torch.inf
    rows[10, 49] = torch.nan
    rows[11] = torch.nan
    return rows


def is_right(scores: Tensor, sampling: Sampling, id: int) -> bool:
    """Whether an id may be drawn from adjusted scores [vocab]: possible, and as likely as the best where it must be."""
    below_best = float(scores.max().double() - scores[id].double())
    if sampling.temperature == 0:
        return below_best == 0
    share = math.exp(-below_best / sampling.temperature)  # of the likeliest one's probability
    best_alone = sampling.top_k == 1 or sampling.top_p <= 1e-6 or sampling.min_p == 1.0
    return share > 1 - 1e-12 if best_alone else share > 0


def test_whatever_is_asked_of_whatever_row_gives_a_right_token_or_says_so() -> None:
    rng = random.Random(6)
    rows = extreme_rows(torch.Generator().manual_seed(6))
    for _ in range(150):
        draws = [
            draw(
                prompt=(0, 3, VOCAB - 1),
                generated=tuple(rng.choices(range(VOCAB), k=rng.choice([0, 4]))),
                **{name: rng.choice(values) for name, values in EXTREMES.items()},
            )
            for _ in rows
        ]
        scores = adjusted(rows, draws)
        for row, (one, drawn) in enumerate(zip(draws, sampled(rows, draws), strict=True)):
            broken = not scores[row].max().isfinite() or bool(scores[row].isnan().any())
            assert 0 <= drawn.id < VOCAB
            assert not broken or math.isnan(drawn.logprob)
            assert broken or is_right(scores[row], one.sampling, drawn.id), (row, one, drawn)
            assert broken or row == 5 or math.isfinite(drawn.logprob), "only the widest row may lose a logprob"
