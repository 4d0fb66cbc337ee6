"""Decoder and tower on a GPU: no host synchronisation, and answers as transformers gives them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.checkpoints import EMBEDDED, random_checkpoint
from tests.gpu.waits import no_host_synchronisation
from tests.models.stepper import BLOCK_SIZE, Stepper, Stepping, generate
from tests.reference import Reference, compare
from triptych.journey import Grid
from triptych.models.base import LanguageModel, PagedInputs
from triptych.models.card import load_card
from triptych.models.loading import load_language, load_tower

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)


@pytest.fixture(params=["random", "embedded"])
def folder(request: pytest.FixtureRequest) -> Path:
    return random_checkpoint() if request.param == "random" else EMBEDDED


def prompt(model: LanguageModel, length: int, seed: int) -> Stepping:
    ids = torch.randint(7, model.vocab_size, (length,), generator=torch.Generator().manual_seed(seed))
    return Stepping(model.embed(ids.to(model.device)), np.tile(np.arange(length), (3, 1)))


def mixed_step(model: LanguageModel) -> tuple[Tensor, PagedInputs, Tensor]:
    """Decodes of different lengths around a first and a later chunk, over a slab with earlier keys in it."""
    queries, lengths = (1, 20, 1, 9, 1), (33, 20, 80, 50, 5)
    blocks = [-(-length // BLOCK_SIZE) for length in lengths]
    tables = torch.zeros(len(lengths), max(blocks), dtype=torch.int64)
    slots, free = [], iter(range(100))
    for row, (query, length, count) in enumerate(zip(queries, lengths, blocks, strict=True)):
        own = torch.tensor([next(free) for _ in range(count)])
        tables[row, :count] = own
        at = torch.arange(length - query, length)
        slots.append(own[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE)
    inputs = PagedInputs(
        positions=torch.arange(sum(queries)).expand(3, -1).contiguous().to(CUDA),
        slots=torch.cat(slots).to(CUDA),
        query_lengths=queries,
        kv_lengths=lengths,
        block_tables=tables.to(CUDA),
        logits_at=torch.arange(sum(queries)).to(CUDA),
    )
    slab = torch.randn(model.kv.slab_shape(100, BLOCK_SIZE), device=CUDA).to(model.dtype)
    embeddings = model.embed(torch.arange(7, 7 + sum(queries)).to(CUDA))
    return embeddings, inputs, slab


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_decoder_step_never_waits_for_the_device(folder: Path, dtype: str) -> None:
    model = load_language(load_card(str(folder), dtype), CUDA, dtype)
    step = mixed_step(model)
    model.forward(*step)
    with no_host_synchronisation():
        logits = model.forward(*step)
    assert not logits.isnan().any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_on_the_device_equals_the_same_step_on_the_host(folder: Path, dtype: str) -> None:
    card = load_card(str(folder), dtype)
    embeddings, inputs, slab = mixed_step(load_language(card, CUDA, dtype))
    found = load_language(card, CUDA, dtype).forward(embeddings, inputs, slab.clone())
    on_host = PagedInputs(
        inputs.positions.cpu(),
        inputs.slots.cpu(),
        inputs.query_lengths,
        inputs.kv_lengths,
        inputs.block_tables.cpu(),
        inputs.logits_at.cpu(),
    )
    host = load_language(card, torch.device("cpu"), "float32")
    expected = host.forward(embeddings.cpu().float(), on_host, slab.cpu().float())
    tolerance = 2e-3 if dtype == "float32" else 0.1 * float(expected.std())
    assert (found.cpu() - expected).abs().mean() < tolerance


def test_greedy_answers_equal_the_reference_in_float32(folder: Path) -> None:
    model = load_language(load_card(str(folder), "float32"), CUDA, "float32")
    reference = Reference(folder)
    texts = ["What is the time?", "the quick brown fox jumps over the lazy dog " * 9]
    inputs = [reference.inputs([{"role": "user", "content": text}]) for text in texts]
    prompts = [
        Stepping(model.embed(each["input_ids"][0].to(CUDA)), np.tile(np.arange(each["input_ids"].shape[1]), (3, 1)))
        for each in inputs
    ]
    answers = generate(Stepper(model, 128), prompts, 48, chunk=17)
    for each, answer in zip(inputs, answers, strict=True):
        compare(reference.generate_from(each)[0], answer.token_ids, answer.logprobs)


GRIDS = (Grid(1, 18, 10), Grid(1, 8, 24), Grid(1, 2, 60), Grid(1, 16, 16))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_tower_never_waits_for_the_device(folder: Path, dtype: str) -> None:
    tower = load_tower(load_card(str(folder), dtype), CUDA, dtype)
    patches = torch.randn(sum(grid.patches for grid in GRIDS), 1176, device=CUDA)
    tower.encode(patches, GRIDS)
    with no_host_synchronisation():
        rows = tower.encode(patches, GRIDS)
    assert not rows.isnan().any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_on_the_device_equal_those_of_the_stock_tower_on_the_host(folder: Path, dtype: str) -> None:
    tower = load_tower(load_card(str(folder), dtype), CUDA, dtype)
    patches = torch.randn(sum(grid.patches for grid in GRIDS), 1176)
    stock = Reference(folder).model.model.visual
    with torch.no_grad():
        expected = stock(patches, torch.tensor([[grid.t, grid.h, grid.w] for grid in GRIDS])).pooler_output
    found = tower.encode(patches.to(CUDA), GRIDS).float().cpu()
    relative = (found - expected).norm() / expected.norm()
    assert relative < (1e-4 if dtype == "float32" else 3e-2)
