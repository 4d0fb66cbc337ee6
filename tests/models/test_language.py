"""The paged decoder answers as transformers' own model does, however the tokens are split into steps."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.models.stepper import Stepper, Stepping, generate
from tests.reference import Reference, compare
from triptych.config import LanguageSettings
from triptych.models.base import LanguageModel
from triptych.models.card import load_card
from triptych.models.loading import load_language

STEPS = 48


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    return load_language(load_card(str(folder), "auto"), torch.device("cpu"))


def pictures(seed: int, *sizes: tuple[int, int]) -> list[np.ndarray]:
    chosen = np.random.default_rng(seed)
    return [chosen.integers(0, 256, (height, width, 3), dtype=np.uint8) for height, width in sizes]


def conversation(*parts: str | None) -> list[dict[str, object]]:
    """One user turn; None stands for an image."""
    content = [{"type": "image"} if part is None else {"type": "text", "text": part} for part in parts]
    return [{"role": "user", "content": content}]


def prompt_of(reference: Reference, model: LanguageModel, inputs: dict[str, Tensor]) -> Stepping:
    """Text embeddings with the reference's own image rows, at the reference's own rope positions."""
    core = reference.model.model
    ids = inputs["input_ids"]
    embeddings = model.embed(ids[0])
    if "pixel_values" in inputs:
        with torch.no_grad():
            rows = core.visual(inputs["pixel_values"], inputs["image_grid_thw"]).pooler_output
        embeddings[ids[0] == reference.model.config.image_token_id] = rows
        positions, _ = core.get_rope_index(ids, inputs["mm_token_type_ids"].int(), inputs["image_grid_thw"])
        return Stepping(embeddings, positions[:, 0].numpy())
    return Stepping(embeddings, np.tile(np.arange(ids.shape[1]), (3, 1)))


def several_inputs(reference: Reference) -> list[dict[str, Tensor]]:
    return [
        reference.inputs(conversation("What is the time?")),
        reference.inputs(conversation(None, "What does the picture say?"), pictures(1, (84, 140))),
        reference.inputs(
            conversation("First", None, "then", None, "and", None, "which is red?"),
            pictures(2, (56, 56), (140, 84), (60, 201)),
        ),
        reference.inputs(conversation("the quick brown fox jumps over the lazy dog " * 12)),
        reference.inputs(conversation(None, "?"), pictures(3, (200, 180))),
    ]


@pytest.mark.parametrize("chunk", [17, 4096])
def test_greedy_answers_equal_the_reference_token_for_token(
    reference: Reference, model: LanguageModel, chunk: int
) -> None:
    inputs = several_inputs(reference)
    prompts = [prompt_of(reference, model, each) for each in inputs]
    answers = generate(Stepper(model, num_blocks=256, seed=chunk), prompts, STEPS, chunk)
    wanted = [reference.generate_from(each, STEPS)[0] for each in inputs]
    compared = [compare(w, a.token_ids, a.logprobs) for w, a in zip(wanted, answers, strict=True)]
    assert [each.equal_tokens for each in compared] == [STEPS] * len(prompts)
    assert max(each.largest_difference for each in compared) < 1e-4


def test_the_generic_decoder_answers_alike(reference: Reference, folder: Path) -> None:
    settings = LanguageSettings(decoder="generic")
    model = load_language(load_card(str(folder), "auto"), torch.device("cpu"), "auto", settings)
    inputs = several_inputs(reference)[1:3]
    answers = generate(Stepper(model, num_blocks=256), [prompt_of(reference, model, each) for each in inputs], 12, 33)
    for each, answer in zip(inputs, answers, strict=True):
        assert compare(reference.generate_from(each, 12)[0], answer.token_ids, answer.logprobs).equal_tokens == 12


def test_a_sequence_does_not_depend_on_its_neighbours(reference: Reference, model: LanguageModel) -> None:
    inputs = several_inputs(reference)
    together = generate(Stepper(model, 256), [prompt_of(reference, model, each) for each in inputs], 12, chunk=33)
    for each, answer in zip(inputs, together, strict=True):
        alone = generate(Stepper(model, 64, seed=1), [prompt_of(reference, model, each)], 12, chunk=4096)
        assert alone[0].token_ids == answer.token_ids
        np.testing.assert_allclose(alone[0].logprobs, answer.logprobs, atol=1e-4)


def random_prompt(model: LanguageModel, length: int, seed: int) -> Stepping:
    ids = torch.randint(7, model.vocab_size, (length,), generator=torch.Generator().manual_seed(seed))
    return Stepping(model.embed(ids), np.tile(np.arange(length), (3, 1)))


def last_logits(model: LanguageModel, length: int, seed: int, chunks: Sequence[int]) -> Tensor:
    stepper, prompt = Stepper(model, 64, seed), random_prompt(model, length, seed)
    for chunk in chunks:
        logits = stepper.step([(prompt, chunk)])
    return logits[0]


def test_any_split_into_chunks_gives_the_same_logits(model: LanguageModel) -> None:
    chosen = random.Random(5)
    for seed in range(12):
        length = chosen.randint(2, 90)
        cuts = sorted(chosen.sample(range(1, length), chosen.randint(1, min(6, length - 1))))
        chunks = [end - begin for begin, end in zip([0, *cuts], [*cuts, length], strict=True)]
        whole = last_logits(model, length, seed, [length])
        torch.testing.assert_close(last_logits(model, length, seed, chunks), whole, atol=2e-4, rtol=0)


def test_random_steps_over_many_sequences_equal_each_alone(model: LanguageModel) -> None:
    """Prefill chunks and decodes of random sequences in random order, finished ones leaving their blocks to others."""
    chosen = random.Random(7)
    stepper = Stepper(model, num_blocks=40)
    running: dict[int, Stepping] = {}
    started = 0
    for _ in range(60):
        while len(running) < 6:
            running[started] = random_prompt(model, chosen.randint(1, 60), started)
            started += 1
        picked = chosen.sample(sorted(running), chosen.randint(1, len(running)))
        stretches = [
            (running[key], min(chosen.choice([1, 1, 1, 7, 30]), running[key].num_tokens - running[key].done))
            for key in picked
        ]
        logits = stepper.step(stretches)
        for key, row in zip(picked, logits, strict=True):
            sequence = running[key]
            if sequence.done == sequence.num_tokens:
                whole = last_logits(model, sequence.num_tokens, key, [sequence.num_tokens])
                torch.testing.assert_close(row, whole, atol=2e-4, rtol=0)
                stepper.remove(running.pop(key))
    assert started > 20


def test_a_neighbour_that_holds_no_numbers_harms_nobody_else(model: LanguageModel) -> None:
    stepper = Stepper(model, num_blocks=16)
    broken, sound, longer = (random_prompt(model, length, seed) for seed, length in enumerate((20, 21, 50)))
    broken.embeddings[3] = torch.nan
    stepper.step([(broken, 19), (sound, 20), (longer, 49)])
    logits = stepper.step([(broken, 1), (sound, 1), (longer, 1)])
    assert logits[0].isnan().all()
    torch.testing.assert_close(logits[1], last_logits(model, 21, 1, [21]), atol=2e-4, rtol=0)
    stepper.remove(broken)
    later = random_prompt(model, 18, 9)  # takes over the broken one's blocks
    stepper.extend(sound, 9)
    stepper.step([(later, 17)])
    logits = stepper.step([(later, 1), (sound, 1)])
    torch.testing.assert_close(logits[0], last_logits(model, 18, 9, [18]), atol=2e-4, rtol=0)
    assert not logits[1].isnan().any()


def test_logits_come_for_the_tokens_that_are_asked_for(model: LanguageModel) -> None:
    assert last_logits(model, 5, 0, [5]).dtype == torch.float32
    assert last_logits(model, 5, 0, [5]).shape == (model.vocab_size,)
    assert model.embed(torch.tensor([8, 9])).shape == (2, model.hidden_size)
