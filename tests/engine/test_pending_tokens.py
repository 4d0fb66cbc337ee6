"""Tokens that only the device knows yet weigh exactly as much as those that the host knows."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.engine.drawing import adjusted, drawn
from triptych.engine.sampler import Draw, sample
from triptych.sampling import Sampling

VOCAB = 40


def random_sampling(rng: random.Random) -> Sampling:
    bias = {rng.randrange(VOCAB): rng.uniform(-3, 3) for _ in range(rng.choice([0, 0, 3]))}
    return Sampling(
        temperature=rng.choice([0.0, 0.0, 0.7, 1.3]),
        seed=rng.randrange(2**60),
        max_tokens=50,
        min_tokens=rng.choice([0, 0, 5]),
        stop_token_ids=(3, 4),
        top_k=rng.choice([0, 0, 9]),
        top_p=rng.choice([1.0, 0.9]),
        top_logprobs=rng.choice([0, 2]),
        presence_penalty=rng.choice([0.0, 0.3, -0.7]),
        frequency_penalty=rng.choice([0.0, 0.1, 0.9]),
        repetition_penalty=rng.choice([1.0, 1.3, 0.8]),
        logit_bias=bias,
    )


def histories(rng: random.Random, sampling: Sequence[Sampling]) -> tuple[list[Draw], list[Draw], list[int], Tensor]:
    """Draws with whole histories, the same with the last token on the device for some, where it is there, its ids."""
    whole, known, pending = [], [], []
    last_ids = torch.tensor([rng.randrange(VOCAB) for _ in range(2 * len(sampling))])
    for each in sampling:
        prompt = np.array([rng.randrange(VOCAB) for _ in range(rng.randrange(1, 9))], dtype=np.int32)
        source = rng.choice([-1, rng.randrange(len(last_ids))])
        before = [rng.randrange(VOCAB) for _ in range(rng.randrange(9))]
        token = [int(last_ids[source])] if source >= 0 else []
        whole.append(Draw(each, 2, prompt, [*before, *token]))
        known.append(Draw(each, 2, prompt, before))
        pending.append(source)
    return whole, known, pending, last_ids


@pytest.mark.parametrize("seed", range(20))
def test_a_token_on_the_device_changes_logits_as_one_on_the_host_to_the_last_bit(seed: int) -> None:
    rng = random.Random(seed)
    logits = torch.randn(12, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4
    whole, known, pending, last_ids = histories(rng, [random_sampling(rng) for _ in range(12)])
    assert torch.equal(adjusted(logits, known, pending, last_ids), adjusted(logits, whole))
    assert drawn(logits, known, pending, last_ids) == sample(logits, range(12), whole)


@pytest.mark.parametrize(
    "wish", [{"frequency_penalty": 0.5}, {"presence_penalty": 0.5}, {"repetition_penalty": 1.5}, {"min_tokens": 3}]
)
def test_what_the_host_does_not_know_yet_is_not_forgotten(wish: dict[str, Any]) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 7], logits[0, 8] = 1.0, 0.9
    one = Draw(replace(Sampling(temperature=0.0, max_tokens=9, stop_token_ids=(7,)), **wish), 0, np.array([1]), [7])
    (found,) = drawn(logits, [one], [0], torch.tensor([7]))
    assert found.id == 8
    (free,) = drawn(logits, [replace(one, sampling=Sampling(temperature=0.0))], [0], torch.tensor([7]))
    assert free.id == 7


def test_randomness_counts_the_token_on_the_device() -> None:
    logits = torch.zeros(1, VOCAB)
    sampling = Sampling(temperature=1.0, seed=5, max_tokens=99)
    ids = [sample(logits, [0], [Draw(sampling, 0, np.array([1]), [0] * count)])[0].id for count in range(8)]
    late = [
        drawn(logits, [Draw(sampling, 0, np.array([1]), [0] * count)], [0], torch.tensor([0])) for count in range(7)
    ]
    assert [found[0].id for found in late] == ids[1:]
    assert len(set(ids)) > 4


def test_a_history_that_grows_counts_as_one_that_is_told_at_once() -> None:
    rng = random.Random(3)
    vocab = 900
    bias = {rng.randrange(vocab): rng.uniform(-5, 5) for _ in range(100)}
    sampling = Sampling(
        presence_penalty=0.3, frequency_penalty=0.7, repetition_penalty=1.2, logit_bias=bias, max_tokens=999
    )
    prompt = np.array([rng.randrange(vocab) for _ in range(300)], dtype=np.int32)
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(3))
    growing = Draw(sampling, 0, prompt, said := [])
    for _ in range(40):
        said.extend(rng.randrange(vocab) for _ in range(rng.randrange(12)))
        found = adjusted(logits, [growing])
        assert torch.equal(found, adjusted(logits, [Draw(sampling, 0, prompt, tuple(said))]))
    counts = {id: said.count(id) for id in range(vocab)}
    for id in range(vocab):
        wanted = logits[0, id]
        if counts[id] or id in prompt:
            wanted = wanted * 1.2 if wanted < 0 else wanted / 1.2
        change = bias.get(id, 0.0) - (0.3 + 0.7 * counts[id] if counts[id] else 0)
        assert float(found[0, id]) == pytest.approx(float(wanted) + change, abs=1e-5)
